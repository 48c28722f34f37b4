#include "comm/small_copy.h"

namespace oom::comm {
namespace {

constexpr int kThreads = 256;

__global__ void copy_words(uint32_t* to, const uint32_t* from, int count) {
  for (int i = threadIdx.x; i < count; i += kThreads) to[i] = from[i];
}

bool is_whole_words(const void* data, int64_t bytes) { return reinterpret_cast<uintptr_t>(data) % 4 == 0 && bytes % 4 == 0; }

}  // namespace

bool is_small_copy(const void* to, const void* from, int64_t bytes) {
  if (!is_whole_words(to, bytes) || !is_whole_words(from, bytes)) return false;
  cudaPointerAttributes target{}, source{};
  if (cudaPointerGetAttributes(&target, to) != cudaSuccess || cudaPointerGetAttributes(&source, from) != cudaSuccess) return false;
  return target.type == cudaMemoryTypeHost && target.devicePointer != nullptr && source.type == cudaMemoryTypeDevice;
}

cudaError_t small_copy_to_host(void* to, const void* from, int64_t bytes, cudaStream_t stream) {
  void* mapped = nullptr;
  if (const cudaError_t status = cudaHostGetDevicePointer(&mapped, to, 0); status != cudaSuccess) return status;
  copy_words<<<1, kThreads, 0, stream>>>(static_cast<uint32_t*>(mapped), static_cast<const uint32_t*>(from), static_cast<int>(bytes / 4));
  return cudaGetLastError();
}

}  // namespace oom::comm
