// Blocks count in shared memory, then add what they found to the totals.
#include <algorithm>

#include "ops/expert_counts_cuda.h"
#include "ops/vector.cuh"

namespace oom::ops {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kChoicesPerBlock = 16384;  // enough that adding a block's counts to the totals does not matter
constexpr int64_t kMostBlocks = 1024;

__global__ void add_expert_counts_kernel(int64_t* totals, int64_t experts, const int32_t* indices, int64_t choices) {
  extern __shared__ int counts[];
  for (int64_t e = threadIdx.x; e < experts; e += kThreads) counts[e] = 0;
  __syncthreads();
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < choices; i += gridDim.x * int64_t{kThreads}) atomicAdd(&counts[indices[i]], 1);
  __syncthreads();
  for (int64_t e = threadIdx.x; e < experts; e += kThreads)
    if (counts[e] != 0) atomicAdd(reinterpret_cast<unsigned long long*>(totals + e), static_cast<unsigned long long>(counts[e]));
}

}  // namespace

void add_expert_counts_cuda(int64_t* counts, int64_t experts, const int32_t* indices, int64_t choices, Stream stream) {
  const unsigned blocks = std::min(blocks_for(choices, kChoicesPerBlock), static_cast<unsigned>(kMostBlocks));
  add_expert_counts_kernel<<<blocks, kThreads, sizeof(int) * static_cast<size_t>(experts), stream>>>(counts, experts, indices, choices);
  check_launch("add_expert_counts");
}

}  // namespace oom::ops
