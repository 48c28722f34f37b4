// The whole entry of a plugin: the class, its kind, the NAME of liboom_NAME.so, a version, a line for lists.
#include <oom/plugin.h>

#include "tiny_family.h"

OOM_PLUGIN(tiny_family::TinyFamily, oom::Kind::kModelAdapter, "tiny_family", "0.1.0", "Attention and routed experts in every layer, out of the core's operators")
