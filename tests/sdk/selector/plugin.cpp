// The whole entry of a plugin: the class, its kind, the NAME of liboom_NAME.so, a version, a line for lists.
#include <oom/plugin.h>

#include "least_memory.h"

OOM_PLUGIN(least_memory::LeastMemory, oom::Kind::kSelector, "least_memory", "0.1.0", "Of the candidates that fit, the one that needs the least host memory")
