// Built with another compiler and another LibTorch.
#include "descriptor.h"

extern "C" OOM_API const OomPluginDescriptor* oom_plugin_v1() noexcept {
  static constexpr OomBuildStamp kStamp = [] {
    OomBuildStamp stamp = OOM_BUILD_STAMP;
    stamp.compiler = "gcc 4.2.1";
    stamp.libtorch = "1.0.0";
    return stamp;
  }();
  static constexpr OomPluginDescriptor kDescriptor = [] {
    OomPluginDescriptor descriptor = good_descriptor("wrong_stamp");
    descriptor.stamp = &kStamp;
    return descriptor;
  }();
  return &kDescriptor;
}
