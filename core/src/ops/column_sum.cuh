/// The second pass of sums over rows: adds partial rows up, column by column, in a fixed order.
#pragma once

#include "ops/vector.cuh"

namespace oom::ops {

constexpr int kColumnLanes = 8;

/// Calls finish(column, sum of partials[*][column]) once a column. Block of 32 columns by kColumnLanes.
template <typename Value, typename Finish>
__global__ void column_sum_kernel(const float* partials, int64_t count, int64_t width, Finish finish) {
  __shared__ Value lanes[kColumnLanes][32];
  const int64_t column = blockIdx.x * int64_t{32} + threadIdx.x;
  Value sum = 0;
  if (column < width)
    for (int64_t p = threadIdx.y; p < count; p += kColumnLanes) sum += partials[p * width + column];
  lanes[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= width) return;
  for (int lane = 1; lane < kColumnLanes; ++lane) sum += lanes[lane][threadIdx.x];
  finish(column, sum);
}

template <typename Value, typename Finish>
void column_sum(const float* partials, int64_t count, int64_t width, Finish finish, Stream stream) {
  column_sum_kernel<Value><<<blocks_for(width, 32), dim3(32, kColumnLanes), 0, stream>>>(partials, count, width, finish);
  check_launch("column_sum");
}

/// Finishes into a gradient sink.
struct SinkFinish {
  Sink sink;
  __device__ void operator()(int64_t column, float sum) const { add_to(sink, column, sum); }
};

}  // namespace oom::ops
