#include "ops/cross_entropy_cuda.h"
#include "ops/exponentials.cuh"
#include "ops/vector.cuh"

namespace oom::ops {
namespace {

constexpr int kThreads = 512;
constexpr int32_t kIgnored = -100;

__device__ float capped(float x, float cap) { return cap > 0 ? cap * tanhf(x / cap) : x; }

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
  const Exponentials all = block_join<kThreads>(mine);
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
