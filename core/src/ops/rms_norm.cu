#include "ops/column_sum.cuh"
#include "ops/rms_norm_cuda.h"
#include "ops/vector.cuh"

namespace oom::ops {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kWarpWidth = 1024;  // rows up to this width take a warp each, wider ones a block
constexpr int64_t kSharedFloats = 12000;  // of the 48 KiB that need no opt-in

__device__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

__device__ bool rounds_inside(NormFlavour flavour) { return flavour == NormFlavour::kLlama || flavour == NormFlavour::kGated; }

/// Reads the factors on n: w, 1 + w, or 1.
template <int N>
__device__ void load_factors(const Array& weight, NormFlavour flavour, int64_t column, float (&factor)[N]) {
  if (weight.data == nullptr) {
#pragma unroll
    for (int i = 0; i < N; ++i) factor[i] = 1.0f;
    return;
  }
  load(weight.data, weight.element, column, factor);
  if (flavour == NormFlavour::kZeroCentred) {
#pragma unroll
    for (int i = 0; i < N; ++i) factor[i] += 1.0f;
  }
}

template <typename T, int N, int kGroup>
__global__ void __launch_bounds__(kThreads) norm_forward_kernel(NormForward a) {
  const int64_t row = blockIdx.x * int64_t{kThreads / kGroup} + threadIdx.x / kGroup;
  if (row >= a.x.count) return;
  const int lane = threadIdx.x % kGroup;
  const T* x = a.x.at<T>(row);
  float squares = 0;
  for (int64_t c = lane * N; c < a.x.width; c += kGroup * N) {
    float value[N];
    load(x + c, value);
#pragma unroll
    for (int i = 0; i < N; ++i) squares += value[i] * value[i];
  }
  const float rstd = 1.0f / sqrtf(group_sum<kGroup>(squares) / static_cast<float>(a.x.width) + a.eps);
  if (lane == 0) a.rstd[row] = rstd;
  const bool inside = rounds_inside(a.flavour);
  const bool gated = a.flavour == NormFlavour::kGated;
  const bool product_rounds = gated && a.weight.element == a.x.element;
  for (int64_t c = lane * N; c < a.x.width; c += kGroup * N) {
    float value[N], factor[N];
    load(x + c, value);
    load_factors(a.weight, a.flavour, c, factor);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float n = value[i] * rstd;
      value[i] = (inside ? rounded<T>(n) : n) * factor[i];
    }
    if (gated) {
      float gate[N];
      load(a.gate.at<T>(row) + c, gate);
#pragma unroll
      for (int i = 0; i < N; ++i) value[i] = (product_rounds ? rounded<T>(value[i]) : value[i]) * (gate[i] * sigmoid(gate[i]));
    }
    store(a.y.at<T>(row) + c, value);
  }
}

/// Block p takes rows p, p + partial_count, ...; its groups take them in turn, each adding to weight sums of its own in shared memory, where a column
/// always belongs to the same thread.
template <typename T, int N, int kGroup>
__global__ void __launch_bounds__(kThreads) norm_backward_kernel(NormBackward a) {
  extern __shared__ float weight_sums[];
  constexpr int kGroups = kThreads / kGroup;
  const int group = threadIdx.x / kGroup;
  const int lane = threadIdx.x % kGroup;
  const int64_t width = a.x.width;
  float* sums = weight_sums + group * width;
  const bool wanted = a.partials != nullptr;
  if (wanted)
    for (int64_t c = lane * N; c < width; c += kGroup * N)
#pragma unroll
      for (int i = 0; i < N; ++i) sums[c + i] = 0;
  const bool inside = rounds_inside(a.flavour);
  const bool gated = a.flavour == NormFlavour::kGated;
  const bool product_rounds = gated && a.weight.element == a.x.element;
  for (int64_t row = blockIdx.x + group * a.partial_count; row < a.x.count; row += kGroups * a.partial_count) {
    const T* x = a.x.at<T>(row);
    const T* dy = a.dy.at<T>(row);
    const float rstd = a.rstd[row];
    float projection = 0;
    for (int64_t c = lane * N; c < width; c += kGroup * N) {
      float value[N], upstream[N], factor[N];
      load(x + c, value);
      load(dy + c, upstream);
      load_factors(a.weight, a.flavour, c, factor);
      if (gated) {
        float gate[N];
        load(a.gate.at<T>(row) + c, gate);
#pragma unroll
        for (int i = 0; i < N; ++i) upstream[i] *= gate[i] * sigmoid(gate[i]);
      }
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float n = value[i] * rstd;
        if (wanted) sums[c + i] += upstream[i] * (inside ? rounded<T>(n) : n);
        projection += upstream[i] * factor[i] * n;
      }
    }
    const float mean = group_sum<kGroup>(projection) / static_cast<float>(width);
    for (int64_t c = lane * N; c < width; c += kGroup * N) {
      float value[N], upstream[N], factor[N];
      load(x + c, value);
      load(dy + c, upstream);
      load_factors(a.weight, a.flavour, c, factor);
      if (gated) {
        float gate[N];
        load(a.gate.at<T>(row) + c, gate);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const float s = sigmoid(gate[i]);
          float product = rounded<T>(value[i] * rstd) * factor[i];
          if (product_rounds) product = rounded<T>(product);
          const float outer = upstream[i];
          upstream[i] = outer * gate[i] * s;
          gate[i] = outer * product * s * (1.0f + gate[i] * (1.0f - s));
        }
        store(a.dgate.at<T>(row) + c, gate);
      }
#pragma unroll
      for (int i = 0; i < N; ++i) value[i] = rstd * (upstream[i] * factor[i] - value[i] * rstd * mean);
      if (a.residual_gradient.data != nullptr) {
        float residual[N];
        load(a.residual_gradient.at<T>(row) + c, residual);
#pragma unroll
        for (int i = 0; i < N; ++i) value[i] += residual[i];
      }
      store(a.dx.at<T>(row) + c, value);
    }
  }
  if (!wanted) return;
  __syncthreads();
  for (int64_t c = threadIdx.x; c < width; c += kThreads) {
    float sum = weight_sums[c];
    for (int g = 1; g < kGroups; ++g) sum += weight_sums[g * width + c];
    a.partials[blockIdx.x * width + c] = sum;
  }
}

}  // namespace

void rms_norm_forward_cuda(const NormForward& a, Stream stream) {
  const bool vectors = vectorizable(a.x) && vectorizable(a.y) && vectorizable(a.gate) && vectorizable(a.weight);
  with_vectors(a.x.element, vectors, [&](auto tag, auto n) {
    using T = decltype(tag);
    if (a.x.width <= kWarpWidth)
      norm_forward_kernel<T, n(), 32><<<blocks_for(a.x.count, kThreads / 32), kThreads, 0, stream>>>(a);
    else
      norm_forward_kernel<T, n(), kThreads><<<blocks_for(a.x.count, 1), kThreads, 0, stream>>>(a);
  });
  check_launch("rms_norm_forward");
}

void rms_norm_backward_cuda(const NormBackward& a, Stream stream) {
  const bool vectors = vectorizable(a.x) && vectorizable(a.dy) && vectorizable(a.gate) && vectorizable(a.residual_gradient) && vectorizable(a.dx) &&
                       vectorizable(a.dgate) && vectorizable(a.weight);
  const bool warps = a.x.width <= kWarpWidth;
  OOM_CHECK_LE(a.x.width, kSharedFloats, "width of a norm on CUDA");
  const size_t shared_bytes = a.partials == nullptr ? 0 : sizeof(float) * static_cast<size_t>(a.x.width) * (warps ? kThreads / 32 : 1);
  with_vectors(a.x.element, vectors, [&](auto tag, auto n) {
    using T = decltype(tag);
    const unsigned int blocks = blocks_for(a.partial_count, 1);
    if (warps)
      norm_backward_kernel<T, n(), 32><<<blocks, kThreads, shared_bytes, stream>>>(a);
    else
      norm_backward_kernel<T, n(), kThreads><<<blocks, kThreads, shared_bytes, stream>>>(a);
  });
  check_launch("rms_norm_backward");
  if (a.partials != nullptr) column_sum<float>(a.partials, a.partial_count, a.x.width, SinkFinish{a.sink}, stream);
}

}  // namespace oom::ops
