#include "ops/cross_entropy_cuda.h"
#include "ops/vector.cuh"

namespace oom::ops {
namespace {

constexpr int kThreads = 512;
constexpr int32_t kIgnored = -100;

__device__ float capped(float x, float cap) { return cap > 0 ? cap * tanhf(x / cap) : x; }

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

__device__ Exponentials join(Exponentials a, const Exponentials& b) {
  if (isnan(b.sum)) a.sum = b.sum;
  a.add(b.largest, b.sum);
  return a;
}

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

/// A block a row, N logits a thread. The gradient G may lie in the logits' own storage: a piece of the row is read by all before any writes it.
template <typename T, typename G, int N>
__global__ void __launch_bounds__(kThreads) cross_entropy_kernel(CrossEntropy a) {
  const int64_t row = blockIdx.x;
  const T* x = a.logits.at<T>(row);
  G* gradient = a.gradient.data != nullptr ? a.gradient.at<G>(row) : nullptr;
  const int64_t vocabulary = a.logits.width;
  const int32_t target = a.targets[row];
  if (target == kIgnored) {
    if (threadIdx.x == 0) a.losses[row] = 0;
    if (gradient != nullptr)
      for (int64_t v = threadIdx.x * N; v < vocabulary; v += kThreads * N) {
        const float zeros[N] = {};
        store(gradient + v, zeros);
      }
    return;
  }
  Exponentials mine{-INFINITY, 0};
  for (int64_t v = threadIdx.x * N; v < vocabulary; v += kThreads * N) {
    float z[N];
    load(x + v, z);
#pragma unroll
    for (int i = 0; i < N; ++i) mine.add(capped(z[i], a.soft_cap));
  }
  const Exponentials all = block_join(mine);
  const float log_sum = logf(all.sum) + all.largest;
  if (threadIdx.x == 0) a.losses[row] = target >= 0 && target < vocabulary ? log_sum - capped(to_float(x[target]), a.soft_cap) : NAN;
  if (gradient == nullptr) return;
  __syncthreads();  // the target's logit has been read
  for (int64_t first = 0; first < vocabulary; first += kThreads * N) {
    const int64_t v = first + threadIdx.x * N;
    float z[N] = {};
    if (v < vocabulary) load(x + v, z);
    __syncthreads();
    if (v >= vocabulary) continue;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float logit = capped(z[i], a.soft_cap);
      z[i] = (expf(logit - log_sum) - (v + i == target ? 1.0f : 0.0f)) * a.scale;
      if (a.soft_cap > 0) z[i] *= 1.0f - (logit / a.soft_cap) * (logit / a.soft_cap);
    }
    store(gradient + v, z);
  }
}

}  // namespace

void cross_entropy_cuda(const CrossEntropy& a, Stream stream) {
  with_vectors(a.logits.element, vectorizable(a.logits) && vectorizable(a.gradient), [&](auto tag, auto n) {
    with_device_type(a.gradient.element, [&](auto result) {
      cross_entropy_kernel<decltype(tag), decltype(result), n()><<<blocks_for(a.logits.count, 1), kThreads, 0, stream>>>(a);
    });
  });
  check_launch("cross_entropy");
}

}  // namespace oom::ops
