// Small copies to the host do not stand behind large ones in the copy engine.
#include "comm/small_copy.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "comm/device_transfer.h"
#include "memory/host_mapping.h"
#include "memory/pinned_registry.h"

namespace oom::comm {
namespace {

TEST(SmallCopyTest, ArrivesBeforeALargeCopyThatWasEnqueuedFirst) {
  int devices = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&devices); status != cudaSuccess || devices == 0) GTEST_SKIP() << "no GPU: " << cudaGetErrorString(status);
  constexpr int64_t kLarge = int64_t{1} << 30, kCount = 777;
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  memory::HostMapping host(kLarge + 4096, -1, "copies");
  const auto registry = memory::make_cuda_pinned_registry();
  registry->register_range(host.data(), kLarge + 4096, {});
  void* allocated = nullptr;
  ASSERT_EQ(cudaMalloc(&allocated, kLarge + 4096), cudaSuccess);
  auto* device = static_cast<std::byte*>(allocated);
  std::vector<int32_t> counts(kCount);
  std::iota(counts.begin(), counts.end(), 5);
  ASSERT_EQ(cudaMemcpy(device + kLarge, counts.data(), kCount * 4, cudaMemcpyHostToDevice), cudaSuccess);
  cudaStream_t large = nullptr, small = nullptr;
  cudaEvent_t large_done = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&large, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamCreateWithFlags(&small, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&large_done, cudaEventDisableTiming), cudaSuccess);

  const auto transfer = DeviceTransfer::make(DeviceKind::kCuda);
  for (int warm = 0; warm < 2; ++warm) {  // the kernel is loaded by its first launch, which waits
    transfer->copy(host.data(), device, warm * kLarge + 4, warm * kLarge + 4, large);
    ASSERT_EQ(cudaEventRecord(large_done, large), cudaSuccess);
    transfer->copy(host.data() + kLarge, device + kLarge, kCount * 4, kCount * 4, small);
    ASSERT_EQ(cudaStreamSynchronize(small), cudaSuccess);
    if (warm > 0) {
      EXPECT_EQ(cudaEventQuery(large_done), cudaErrorNotReady);
    }
    ASSERT_EQ(cudaStreamSynchronize(large), cudaSuccess);
  }
  const auto* arrived = reinterpret_cast<const int32_t*>(host.data() + kLarge);
  EXPECT_EQ(std::vector<int32_t>(arrived, arrived + kCount), counts);
  cudaEventDestroy(large_done);
  cudaStreamDestroy(large);
  cudaStreamDestroy(small);
  cudaFree(device);
  registry->unregister_range(host.data());
}

}  // namespace
}  // namespace oom::comm
