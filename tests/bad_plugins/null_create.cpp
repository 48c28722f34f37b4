// Makes nothing and does not say why.
#include "descriptor.h"

extern "C" OOM_API const OomPluginDescriptor* oom_plugin_v1() noexcept {
  static constexpr OomPluginDescriptor kDescriptor = [] {
    OomPluginDescriptor descriptor = good_descriptor("null_create");
    descriptor.create = [](const oom::HostServices*, OomPluginFailure*) noexcept -> oom::Plugin* { return nullptr; };
    return descriptor;
  }();
  return &kDescriptor;
}
