/// Sums of exponentials relative to a running maximum, joined over a block in one fixed order.
#pragma once

#include <cuda_runtime.h>

namespace oom::ops {

/// A running maximum and the sum of exponentials relative to it. A maximum of minus infinity stands for nothing yet.
struct Exponentials {
  float largest;
  float sum;

  __device__ void add(float value, float count = 1.0f) {
    if (value > largest) {
      sum = sum * expf(largest - value) + count;
      largest = value;
    } else if (value != -INFINITY) {
      sum += count * expf(value - largest);  // also where the value is no number: the sum is none either
    }
  }
};

__device__ inline Exponentials join(Exponentials a, const Exponentials& b) {
  if (isnan(b.sum)) a.sum = b.sum;
  a.add(b.largest, b.sum);
  return a;
}

/// Joins over a block of `kThreads`; every thread gets the result. All threads must arrive.
template <int kThreads>
__device__ Exponentials block_join(Exponentials value) {
  __shared__ float largest[kThreads / 32];
  __shared__ float sums[kThreads / 32];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    Exponentials other{};
    other.largest = __shfl_xor_sync(0xffffffffu, value.largest, distance);
    other.sum = __shfl_xor_sync(0xffffffffu, value.sum, distance);
    // The lower lane's value comes first, so that all lanes hold the same bits.
    value = (threadIdx.x & distance) == 0 ? join(value, other) : join(other, value);
  }
  if (threadIdx.x % 32 == 0) {
    largest[threadIdx.x / 32] = value.largest;
    sums[threadIdx.x / 32] = value.sum;
  }
  __syncthreads();
  value = {largest[0], sums[0]};
  for (int w = 1; w < kThreads / 32; ++w) value = join(value, {largest[w], sums[w]});
  return value;
}

}  // namespace oom::ops
