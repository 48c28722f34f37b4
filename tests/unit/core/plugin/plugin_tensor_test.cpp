// Tensors made inside a plugin, on both devices.
#include <gtest/gtest.h>

#if OOM_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

#include "plugin/plugin_registry.h"
#include "probe.h"

namespace oom::plugin {
namespace {

int sum_on(DeviceKind device) {
  HostServices services = engine_services();
  services.device = device;
  const PluginInstance instance = PluginLibrary::open("tensor_maker", OOM_TENSOR_PLUGIN).create(services);
  return as_interface<Probe>(*instance, "tensor_maker").answer(100);
}

TEST(PluginTensor, IsMadeOnTheCpu) { EXPECT_EQ(sum_on(DeviceKind::kCpu), 5050); }

TEST(PluginTensor, IsMadeOnTheGpu) {
#if OOM_WITH_CUDA
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no CUDA device";
  EXPECT_EQ(sum_on(DeviceKind::kCuda), 5050);
#else
  GTEST_SKIP() << "built without CUDA";
#endif
}

}  // namespace
}  // namespace oom::plugin
