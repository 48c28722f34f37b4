// Several runs in one process, as calibration and comparison make them: nothing of one is left to the next.
#include <ATen/ops/empty.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "runtime/device_runtime.h"

namespace oom::runtime {
namespace {

TEST(CudaRuntimeTest, LeavesNeitherMemoryNorCapToTheNextRun) {
  int devices = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&devices); status != cudaSuccess || devices == 0) GTEST_SKIP() << "no GPU: " << cudaGetErrorString(status);
  constexpr int64_t kBytes = int64_t{4} << 30;
  const auto use = [&](DeviceRuntime& device) { device.run(0, [&](void*) { (void)at::empty({kBytes}, at::device(at::kCUDA).dtype(at::kByte)); }); };
  int64_t first = 0;
  {
    const auto device = DeviceRuntime::make(DeviceKind::kCuda, 1, 1);
    use(*device);
    device->cap_temporaries(0, kBytes);
    first = device->fixed_bytes().at(0);
  }
  const auto device = DeviceRuntime::make(DeviceKind::kCuda, 1, 1);
  EXPECT_LT(device->fixed_bytes().at(0), first + kBytes / 8);
  EXPECT_NO_THROW(device->run(0, [&](void*) { (void)at::empty({2 * kBytes}, at::device(at::kCUDA).dtype(at::kByte)); }));
}

}  // namespace
}  // namespace oom::runtime
