// The whole entry of a plugin: the class, its kind, the NAME of liboom_NAME.so, a version, a line for lists.
#include <oom/plugin.h>

#include "example.h"

OOM_PLUGIN(example::Example, oom::Kind::kSelector, "example", "0.1.0", "Shows what a plugin consists of")
