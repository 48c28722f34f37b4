#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "hardware/thread_placement.h"
#include "memory/host_arena.h"

namespace oom::memory {
namespace {

TEST(CudaPinnedRegistry, RegistersAnArenaThatCopiesAcrossItsMiddle) {
  int devices = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&devices); status != cudaSuccess || devices == 0)
    GTEST_SKIP() << "no GPU: " << cudaGetErrorString(status);
  const int64_t bytes = (int64_t{5} << 29) + 4096;  // 2.5 GiB: three pieces
  const auto registry = make_cuda_pinned_registry();
  HostArenaOptions options;
  options.nodes = {{bytes, -1, hardware::allowed_cpus()}};
  options.registry = registry.get();
  void* border = nullptr;
  {
    HostArena arena(options);
    std::byte* data = arena.allocate(0, "all", "state", bytes);
    const std::vector<ByteRange> pieces = registration_pieces(data, bytes, 1);
    ASSERT_EQ(pieces.size(), 1u);
    for (const ByteRange& piece : pieces) {
      cudaPointerAttributes attributes{};
      ASSERT_EQ(cudaPointerGetAttributes(&attributes, piece.data + piece.bytes - 1), cudaSuccess);
      EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
    }
    // One copy across the middle, where more threads would have put a border between pieces.
    constexpr int64_t kCopyBytes = 8 << 20;
    std::byte* source = data + bytes / 2 - kCopyBytes / 2;
    for (int64_t i = 0; i < kCopyBytes; ++i) source[i] = static_cast<std::byte>(i * 7 % 251);
    void* device = nullptr;
    ASSERT_EQ(cudaMalloc(&device, kCopyBytes), cudaSuccess);
    ASSERT_EQ(cudaMemcpyAsync(device, source, kCopyBytes, cudaMemcpyHostToDevice, nullptr), cudaSuccess);
    ASSERT_EQ(cudaMemcpyAsync(data, device, kCopyBytes, cudaMemcpyDeviceToHost, nullptr), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_TRUE(std::equal(source, source + kCopyBytes, data));
    cudaFree(device);
    border = data + bytes / 2;
  }
  cudaPointerAttributes attributes{};
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, border), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
}

}  // namespace
}  // namespace oom::memory
