// An entry that returns nothing.
#include "descriptor.h"

extern "C" OOM_API const OomPluginDescriptor* oom_plugin_v1() noexcept { return nullptr; }
