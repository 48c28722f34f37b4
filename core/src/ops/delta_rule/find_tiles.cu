/// Cuts segments into tiles on the device, so that nothing is copied from the host.
#include "ops/delta_rule/block.cuh"

namespace oom::ops::delta_rule {
namespace {

constexpr int kThreads = 1024;

__device__ int32_t start_of(const DeltaRuleOperands& in, int64_t segment) {
  return in.starts != nullptr ? in.starts[segment] : static_cast<int32_t>(segment * (in.shape.tokens / in.shape.sequences));
}

/// One block.
__global__ void __launch_bounds__(kThreads) find_tiles_kernel(DeltaRuleOperands in, SegmentSpan* segments, TileSpan* tiles, int tile_count) {
  int32_t* totals = reinterpret_cast<int32_t*>(shared_bytes);  // of warps
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int segment_count = static_cast<int>(in.shape.segments);
  int32_t before = 0;
  for (int first = 0; first < segment_count; first += kThreads) {
    const int segment = first + static_cast<int>(threadIdx.x);
    const bool exists = segment < segment_count;
    const int32_t begin = exists ? start_of(in, segment) : 0, end = exists ? start_of(in, segment + 1) : 0;
    const int32_t own = (end - begin + kTokens - 1) / kTokens;
    int32_t sum = own;
    for (int distance = 1; distance < 32; distance *= 2) {
      const int32_t earlier = __shfl_up_sync(0xffffffffu, sum, distance);
      if (lane >= distance) sum += earlier;
    }
    if (lane == 31) totals[warp] = sum;
    __syncthreads();
    int32_t others = before;
    for (int w = 0; w < kThreads / 32; ++w) {
      if (w < warp) others += totals[w];
      before += totals[w];
    }
    if (exists) segments[segment] = {begin, end, others + sum - own, own};
    __syncthreads();
  }
  for (int tile = static_cast<int>(threadIdx.x); tile < tile_count; tile += kThreads) {
    int low = 0, high = segment_count - 1;  // the last segment whose first tile is not after this one; empty segments come before the one they share it with
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (segments[middle].first_tile <= tile)
        low = middle;
      else
        high = middle - 1;
    }
    const SegmentSpan segment = segments[low];
    const int32_t begin = segment.begin + (tile - segment.first_tile) * kTokens;
    tiles[tile] = {low, begin, min(kTokens, segment.end - begin), 0};
  }
}

}  // namespace

void find_tiles(const DeltaRuleOperands& in, SegmentSpan* segments, TileSpan* tiles, int tile_count, Stream stream) {
  start(find_tiles_kernel, "delta_rule_find_tiles", dim3(1), kThreads, kThreads / 32 * 4, stream, in, segments, tiles, tile_count);
}

}  // namespace oom::ops::delta_rule
