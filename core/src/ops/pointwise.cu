#include "ops/activation_cuda.h"
#include "ops/activation_math.h"
#include "ops/vector.cuh"

namespace oom::ops {
namespace {

constexpr int kThreads = 256;

__device__ float apply(Pointwise kind, float x, float y, float factor) {
  switch (kind) {
    case Pointwise::kScale:
    case Pointwise::kScaleBy: return factor * x;
    case Pointwise::kAddScaled: return x + factor * y;
    case Pointwise::kSoftCap: return factor * tanhf(x / factor);
    case Pointwise::kSoftCapBackward: return x * (1.0f - (y / factor) * (y / factor));
    case Pointwise::kSigmoidGate: return x * sigmoid(y);
  }
  return 0.0f;
}

template <typename T, int N>
__global__ void pointwise_kernel(PointwiseMap m, int64_t vectors) {
  const int64_t item = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (item >= m.out.count * vectors) return;
  const int64_t row = item / vectors;
  const int64_t c = item % vectors * N;
  const float factor = m.scalar.data != nullptr ? read(m.scalar.data, m.scalar.element, 0) : m.factor;
  float x[N], y[N] = {};
  load(m.x.at<T>(row) + c, x);
  if (m.y.data != nullptr) load(m.y.at<T>(row) + c, y);
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = apply(m.kind, x[i], y[i], factor);
  store(m.out.at<T>(row) + c, x);
}

template <typename T, int N>
__global__ void sigmoid_gate_backward_kernel(SigmoidGateBackward a, int64_t vectors) {
  const int64_t item = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (item >= a.x.count * vectors) return;
  const int64_t row = item / vectors;
  const int64_t c = item % vectors * N;
  float dy[N], x[N], gate[N];
  load(a.dy.at<T>(row) + c, dy);
  load(a.x.at<T>(row) + c, x);
  load(a.gate.at<T>(row) + c, gate);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float s = sigmoid(gate[i]);
    gate[i] = dy[i] * x[i] * s * (1.0f - s);
    dy[i] *= s;
  }
  store(a.dx.at<T>(row) + c, dy);
  store(a.dgate.at<T>(row) + c, gate);
}

template <typename T, int N>
__global__ void row_gate_forward_kernel(RowGateForward a, int64_t vectors) {
  const int64_t item = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (item >= a.x.count * vectors) return;
  const int64_t row = item / vectors;
  const int64_t c = item % vectors * N;
  const float s = sigmoid(read(a.gate.data, a.gate.element, row));
  float x[N];
  load(a.x.at<T>(row) + c, x);
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] *= s;
  store(a.y.at<T>(row) + c, x);
}

template <typename T, int N>
__global__ void __launch_bounds__(kThreads) row_gate_backward_kernel(RowGateBackward a) {
  const int64_t row = blockIdx.x;
  const float s = sigmoid(read(a.gate.data, a.gate.element, row));
  float product = 0;
  for (int64_t c = threadIdx.x * N; c < a.x.width; c += kThreads * N) {
    float dy[N], x[N];
    load(a.dy.at<T>(row) + c, dy);
    load(a.x.at<T>(row) + c, x);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      product += dy[i] * x[i];
      dy[i] *= s;
    }
    store(a.dx.at<T>(row) + c, dy);
  }
  product = group_sum<kThreads>(product);
  if (threadIdx.x == 0) write(a.dgate, a.gate.element, row, product * s * (1.0f - s));
}

}  // namespace

void pointwise_cuda(const PointwiseMap& m, Stream stream) {
  with_vectors(m.out.element, vectorizable(m.out) && vectorizable(m.x) && vectorizable(m.y), [&](auto tag, auto n) {
    const int64_t vectors = m.out.width / n();
    pointwise_kernel<decltype(tag), n()><<<blocks_for(m.out.count * vectors, kThreads), kThreads, 0, stream>>>(m, vectors);
  });
  check_launch("pointwise");
}

void sigmoid_gate_backward_cuda(const SigmoidGateBackward& a, Stream stream) {
  const bool aligned = vectorizable(a.dx) && vectorizable(a.dgate) && vectorizable(a.dy) && vectorizable(a.x) && vectorizable(a.gate);
  with_vectors(a.x.element, aligned, [&](auto tag, auto n) {
    const int64_t vectors = a.x.width / n();
    sigmoid_gate_backward_kernel<decltype(tag), n()><<<blocks_for(a.x.count * vectors, kThreads), kThreads, 0, stream>>>(a, vectors);
  });
  check_launch("sigmoid_gate_backward");
}

void row_gate_forward_cuda(const RowGateForward& a, Stream stream) {
  with_vectors(a.x.element, vectorizable(a.x) && vectorizable(a.y), [&](auto tag, auto n) {
    const int64_t vectors = a.x.width / n();
    row_gate_forward_kernel<decltype(tag), n()><<<blocks_for(a.x.count * vectors, kThreads), kThreads, 0, stream>>>(a, vectors);
  });
  check_launch("row_gate_forward");
}

void row_gate_backward_cuda(const RowGateBackward& a, Stream stream) {
  with_vectors(a.x.element, vectorizable(a.dy) && vectorizable(a.x) && vectorizable(a.dx), [&](auto tag, auto n) {
    row_gate_backward_kernel<decltype(tag), n()><<<blocks_for(a.x.count, 1), kThreads, 0, stream>>>(a);
  });
  check_launch("row_gate_backward");
}

}  // namespace oom::ops
