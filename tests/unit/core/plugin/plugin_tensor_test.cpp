// Tensors made inside a plugin, on both devices.
#include <gtest/gtest.h>

#include <filesystem>

#if OOM_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

#include "plugin/plugin_registry.h"
#include "probe.h"

namespace oom::plugin {
namespace {

// Beside this program, so that the two can be taken elsewhere together.
std::string plugin_path() { return std::filesystem::read_symlink("/proc/self/exe").parent_path() / OOM_TENSOR_PLUGIN; }

int sum_on(DeviceKind device) {
  HostServices services = engine_services();
  services.device = device;
  const PluginInstance instance = PluginLibrary::open("tensor_maker", plugin_path()).create(services);
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
