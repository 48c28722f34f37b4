// A stable counting sort. A block owns a tile of consecutive choices, its warps consecutive parts of the tile: they count, prefix sums over tiles and
// experts turn counts into first rows, and each warp walks its part once more in order.
#include "ops/permutation_cuda.h"
#include "ops/vector.cuh"

namespace oom::ops {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kMaxExpertsOfBlock = 1024;

/// The part of the choices that a warp owns.
struct Part {
  int64_t begin;
  int64_t end;
};

__device__ Part part_of(int64_t choices, int64_t tile, int64_t block, int warp) {
  const int64_t part = tile / kWarps;
  const int64_t begin = block * tile + warp * part;
  return {begin < choices ? begin : choices, begin + part < choices ? begin + part : choices};
}

__global__ void count_kernel(PermutationBuild a, int64_t tile) {
  __shared__ int counts[kMaxExpertsOfBlock];
  for (int64_t e = threadIdx.x; e < a.experts; e += kThreads) counts[e] = 0;
  __syncthreads();
  const int64_t begin = blockIdx.x * tile;
  const int64_t end = begin + tile < a.choices ? begin + tile : a.choices;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) atomicAdd(&counts[a.indices[i]], 1);
  __syncthreads();
  for (int64_t e = threadIdx.x; e < a.experts; e += kThreads) a.tile_counts[e * a.tiles + blockIdx.x] = counts[e];
}

/// A warp an expert: turns counts of tiles into the rows of the expert before each tile, and writes the expert's count.
__global__ void scan_tiles_kernel(PermutationBuild a) {
  const int lane = threadIdx.x % 32;
  const int64_t expert = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32;
  if (expert >= a.experts) return;
  int32_t* counts = a.tile_counts + expert * a.tiles;
  int carried = 0;
  for (int64_t first = 0; first < a.tiles; first += 32) {
    const int64_t tile = first + lane;
    const int count = tile < a.tiles ? counts[tile] : 0;
    int inclusive = count;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int below = __shfl_up_sync(0xffffffffu, inclusive, distance);
      if (lane >= distance) inclusive += below;
    }
    if (tile < a.tiles) counts[tile] = carried + inclusive - count;
    carried += __shfl_sync(0xffffffffu, inclusive, 31);
  }
  if (lane == 0) a.counts[expert] = carried;
}

/// One warp: running sums over experts.
__global__ void scan_experts_kernel(PermutationBuild a) {
  const int lane = threadIdx.x;
  int carried = 0;
  for (int64_t first = 0; first < a.experts; first += 32) {
    const int64_t expert = first + lane;
    int inclusive = expert < a.experts ? a.counts[expert] : 0;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int below = __shfl_up_sync(0xffffffffu, inclusive, distance);
      if (lane >= distance) inclusive += below;
    }
    if (expert < a.experts) a.ends[expert] = carried + inclusive;
    carried += __shfl_sync(0xffffffffu, inclusive, 31);
  }
}

__global__ void place_kernel(PermutationBuild a, int64_t tile) {
  extern __shared__ int next_rows[];  // [kWarps, experts]
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  for (int64_t i = threadIdx.x; i < kWarps * a.experts; i += kThreads) next_rows[i] = 0;
  __syncthreads();
  int* next = next_rows + warp * a.experts;
  const Part part = part_of(a.choices, tile, blockIdx.x, warp);
  for (int64_t i = part.begin + lane; i < part.end; i += 32) atomicAdd(&next[a.indices[i]], 1);
  __syncthreads();
  for (int64_t e = threadIdx.x; e < a.experts; e += kThreads) {
    int row = a.ends[e] - a.counts[e] + a.tile_counts[e * a.tiles + blockIdx.x];
    for (int w = 0; w < kWarps; ++w) {
      const int count = next_rows[w * a.experts + e];
      next_rows[w * a.experts + e] = row;
      row += count;
    }
  }
  __syncthreads();
  for (int64_t first = part.begin; first < part.end; first += 32) {
    const int64_t i = first + lane;
    // Lanes beyond the part form a group of their own: no expert is negative.
    const int expert = i < part.end ? a.indices[i] : -1;
    const unsigned int same = __match_any_sync(0xffffffffu, expert);
    const int rank = __popc(same & ((1u << lane) - 1u));
    const int row = expert >= 0 ? next[expert] + rank : 0;
    __syncwarp();
    if (expert >= 0) {
      if (rank == 0) next[expert] += __popc(same);
      a.token_of[row] = static_cast<int32_t>(i / a.top_k);
      a.row_of[i] = row;
    }
    __syncwarp();
  }
}

}  // namespace

void make_permutation_cuda(const PermutationBuild& a, Stream stream) {
  const int64_t tile = permutation_tile(a.choices);
  const unsigned int tiles = blocks_for(a.tiles, 1);
  count_kernel<<<tiles, kThreads, 0, stream>>>(a, tile);
  check_launch("permutation count");
  scan_tiles_kernel<<<blocks_for(a.experts, kWarps), kThreads, 0, stream>>>(a);
  check_launch("permutation scan of tiles");
  scan_experts_kernel<<<1, 32, 0, stream>>>(a);
  check_launch("permutation scan of experts");
  place_kernel<<<tiles, kThreads, sizeof(int) * kWarps * static_cast<size_t>(a.experts), stream>>>(a, tile);
  check_launch("permutation place");
}

}  // namespace oom::ops
