// A descriptor that ends before `create`.
#include "descriptor.h"

extern "C" OOM_API const OomPluginDescriptor* oom_plugin_v1() noexcept {
  static constexpr OomPluginDescriptor kDescriptor = [] {
    OomPluginDescriptor descriptor = good_descriptor("short_struct");
    descriptor.struct_size = offsetof(OomPluginDescriptor, create);
    return descriptor;
  }();
  return &kDescriptor;
}
