#include "ops/activation_cuda.h"
#include "ops/activation_math.h"
#include "ops/vector.cuh"

namespace oom::ops {
namespace {

constexpr int kThreads = 256;

template <typename T, int N>
__global__ void gated_forward_kernel(GatedForward a, int64_t vectors) {
  const int64_t item = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (item >= a.a.count * vectors) return;
  const int64_t row = item / vectors;
  const int64_t c = item % vectors * N;
  const T* gates = a.z.at<T>(row);
  float gate[N], up[N];
  load(gates + c, gate);
  load(gates + a.a.width + c, up);
#pragma unroll
  for (int i = 0; i < N; ++i) up[i] *= activate(a.kind, gate[i]).value;
  store(a.a.at<T>(row) + c, up);
}

/// A group of kGroup threads a row: a warp, or a block where kGroup == kThreads.
template <typename T, int N, int kGroup>
__global__ void __launch_bounds__(kThreads) gated_backward_kernel(GatedBackward a) {
  const int64_t row = blockIdx.x * int64_t{kThreads / kGroup} + threadIdx.x / kGroup;
  if (row >= a.a.count) return;
  const int lane = threadIdx.x % kGroup;
  const int64_t width = a.a.width;
  const float weight = a.row_weights != nullptr ? a.row_weights[row] : 1.0f;
  float product = 0;
  for (int64_t c = lane * N; c < width; c += kGroup * N) {
    float gate[N], up[N], upstream[N], value[N];
    load(a.z.at<T>(row) + c, gate);
    load(a.z.at<T>(row) + width + c, up);
    load(a.da.at<T>(row) + c, upstream);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const Activated act = activate(a.kind, gate[i]);
      value[i] = rounded<T>(act.value * up[i]);  // what the forward used
      product += upstream[i] * value[i];
      value[i] *= weight;
      gate[i] = weight * upstream[i] * up[i] * act.slope;
      up[i] = weight * upstream[i] * act.value;
    }
    store(a.a.at<T>(row) + c, value);
    store(a.dz.at<T>(row) + c, gate);
    store(a.dz.at<T>(row) + width + c, up);
  }
  if (a.d_weights == nullptr) return;
  product = group_sum<kGroup>(product);
  if (lane == 0) a.d_weights[row] = product;
}

/// Both halves of a row must start on a vector boundary.
bool halves_vectorizable(const Rows& z, const Rows& a) { return vectorizable(z) && vectorizable(a) && a.width % kVectorElements == 0; }

}  // namespace

void gated_forward_cuda(const GatedForward& a, Stream stream) {
  with_vectors(a.z.element, halves_vectorizable(a.z, a.a), [&](auto tag, auto n) {
    const int64_t vectors = a.a.width / n();
    gated_forward_kernel<decltype(tag), n()><<<blocks_for(a.a.count * vectors, kThreads), kThreads, 0, stream>>>(a, vectors);
  });
  check_launch("gated_forward");
}

void gated_backward_cuda(const GatedBackward& a, Stream stream) {
  const bool vectors = halves_vectorizable(a.z, a.a) && vectorizable(a.da) && vectorizable(a.dz);
  with_vectors(a.z.element, vectors, [&](auto tag, auto n) {
    if (a.a.width <= 1024)
      gated_backward_kernel<decltype(tag), n(), 32><<<blocks_for(a.a.count, kThreads / 32), kThreads, 0, stream>>>(a);
    else
      gated_backward_kernel<decltype(tag), n(), kThreads><<<blocks_for(a.a.count, 1), kThreads, 0, stream>>>(a);
  });
  check_launch("gated_backward");
}

}  // namespace oom::ops
