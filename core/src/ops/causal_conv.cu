#include "ops/activation_math.h"
#include "ops/causal_conv_cuda.h"
#include "ops/column_sum.cuh"
#include "ops/vector.cuh"

namespace oom::ops {
namespace {

constexpr int kThreads = 128;

/// The last K rows of a thread's N channels, as the current token sees them: values[K - 1] is its own.
template <typename T, int N, int K>
struct Window {
  float values[K][N];

  __device__ void read(const ConvInput& in, int64_t position, int64_t start, int64_t channel, float (&to)[N]) {
    const T* row = in.row<T>(position, start);
    if (row != nullptr) {
      load(row + channel, to);
      return;
    }
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = 0;
  }
  /// Puts the rows before `token` into place, so that advance(token) completes them.
  __device__ void begin(const ConvInput& in, int64_t token, int64_t start, int64_t channel) {
#pragma unroll
    for (int j = 1; j < K; ++j) read(in, token - K + j, start, channel, values[j]);
  }
  __device__ void advance(const ConvInput& in, int64_t token, int64_t channel) {
#pragma unroll
    for (int j = 1; j < K; ++j)
#pragma unroll
      for (int i = 0; i < N; ++i) values[j - 1][i] = values[j][i];
    load(in.x.at<T>(token) + channel, values[K - 1]);
  }
  __device__ float convolved(const float (&weight)[K][N], int i) const {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < K; ++j) sum += weight[j][i] * values[j][i];
    return sum;
  }
};

/// weight[j][i] of channel + i; stored [C, K].
template <int N, int K>
__device__ void load_weight(const Array& weight, int64_t channel, float (&to)[K][N]) {
#pragma unroll
  for (int i = 0; i < N; ++i)
#pragma unroll
    for (int j = 0; j < K; ++j) to[j][i] = read(weight.data, weight.element, (channel + i) * K + j);
}

/// Walks tokens and knows the start of the segment that each belongs to; every thread of a block walks the same ones.
struct Walk {
  int64_t start;
  int64_t next = 0;  // first token of the next segment, where `start` must be looked up again
  __device__ void at(const ConvInput& in, int64_t token) {
    if (token < next) return;
    start = in.segment_start(token);
    if (in.starts == nullptr) {
      next = start + in.length;
      return;
    }
    int64_t low = 0, high = in.segments;  // the first start behind token
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (in.starts[middle] <= token)
        low = middle + 1;
      else
        high = middle;
    }
    next = in.starts[low];
  }
};

/// Block (x, y): N * kThreads channels, one stretch of tokens.
template <typename T, int N, int K>
__global__ void __launch_bounds__(kThreads) conv_forward_kernel(ConvForward a) {
  const int64_t channel = (blockIdx.y * int64_t{kThreads} + threadIdx.x) * N;
  if (channel >= a.in.x.width) return;
  const int64_t first = blockIdx.x * kConvStretch;
  const int64_t end = first + kConvStretch < a.in.x.count ? first + kConvStretch : a.in.x.count;
  float weight[K][N];
  load_weight<N, K>(a.in.weight, channel, weight);
  Window<T, N, K> window;
  Walk walk;
  for (int64_t t = first; t < end; ++t) {
    walk.at(a.in, t);
    if (t == first || t == walk.start) window.begin(a.in, t, walk.start, channel);
    window.advance(a.in, t, channel);
    float y[N];
#pragma unroll
    for (int i = 0; i < N; ++i) y[i] = activate(GatedActivation::kSilu, window.convolved(weight, i)).value;
    store(a.y.at<T>(t) + channel, y);
  }
}

/// Block (x, y): stretches x, x + gridDim.x, ... of N * kThreads channels. A stretch's last rows are read by K - 1 tokens behind it, whose gradients before
/// SiLU are computed here again.
template <typename T, int N, int K>
__global__ void __launch_bounds__(kThreads) conv_backward_kernel(ConvBackward a) {
  const int64_t channel = (blockIdx.y * int64_t{kThreads} + threadIdx.x) * N;
  const ConvInput& in = a.in;
  if (channel >= in.x.width) return;
  float weight[K][N], d_weight[K][N];
  load_weight<N, K>(in.weight, channel, weight);
#pragma unroll
  for (int j = 0; j < K; ++j)
#pragma unroll
    for (int i = 0; i < N; ++i) d_weight[j][i] = 0;
  for (int64_t first = blockIdx.x * kConvStretch; first < in.x.count; first += gridDim.x * kConvStretch) {
    const int64_t end = first + kConvStretch < in.x.count ? first + kConvStretch : in.x.count;
    Window<T, N, K> window;
    Walk walk;
    float dc[K][N];     // gradients before SiLU of the last K tokens, the newest last
    int64_t starts[K];  // of their segments; beyond every row where there is no token
#pragma unroll
    for (int d = 0; d < K; ++d) starts[d] = INT64_MAX;
    for (int64_t t = first; t < end + K - 1; ++t) {
#pragma unroll
      for (int d = 1; d < K; ++d) {
        starts[d - 1] = starts[d];
#pragma unroll
        for (int i = 0; i < N; ++i) dc[d - 1][i] = dc[d][i];
      }
      starts[K - 1] = INT64_MAX;
      if (t < in.x.count) {
        walk.at(in, t);
        starts[K - 1] = walk.start;
        if (t == first || t == walk.start) window.begin(in, t, walk.start, channel);
        window.advance(in, t, channel);
        load(a.dy.at<T>(t) + channel, dc[K - 1]);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          dc[K - 1][i] *= activate(GatedActivation::kSilu, window.convolved(weight, i)).slope;
          const float counted = t < end ? dc[K - 1][i] : 0.0f;
#pragma unroll
          for (int j = 0; j < K; ++j) d_weight[j][i] += counted * window.values[j][i];
        }
      }
      const int64_t u = t - (K - 1);
      if (u < first) continue;
      float dx[N];
      const int64_t slot = a.d_next_context != nullptr ? in.next_slot(u, u / in.length) : -1;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        float sum = 0;
#pragma unroll
        for (int d = 0; d < K; ++d)
          if (starts[d] <= u) sum += weight[K - 1 - d][i] * dc[d][i];
        dx[i] = slot >= 0 ? sum + a.d_next_context[slot * in.x.width + channel + i] : sum;
      }
      store(a.dx.at<T>(u) + channel, dx);
    }
  }
  if (a.partials == nullptr) return;
  float* partial = a.partials + blockIdx.x * in.x.width * K;
#pragma unroll
  for (int i = 0; i < N; ++i)
#pragma unroll
    for (int j = 0; j < K; ++j) partial[(channel + i) * K + j] = d_weight[j][i];
}

/// Block (x, y): kThreads channels of sequence y. The first K - 1 tokens read the context.
template <typename T, int K>
__global__ void __launch_bounds__(kThreads) conv_d_context_kernel(ConvBackward a) {
  const int64_t channel = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  const ConvInput& in = a.in;
  if (channel >= in.x.width) return;
  const int64_t sequence = blockIdx.y, begin = sequence * in.length;
  float weight[K][1], sums[K - 1];
  load_weight<1, K>(in.weight, channel, weight);
#pragma unroll
  for (int m = 0; m < K - 1; ++m) {
    const int64_t slot = a.d_next_context != nullptr ? in.next_slot(begin - (K - 1) + m, sequence) : -1;
    sums[m] = slot >= 0 ? a.d_next_context[slot * in.x.width + channel] : 0.0f;
  }
  Window<T, 1, K> window;
  window.begin(in, begin, begin, channel);
#pragma unroll
  for (int s = 0; s < K - 1; ++s) {
    const int64_t t = begin + s;
    if (s >= in.length || in.segment_start(t) != begin) break;
    window.advance(in, t, channel);
    const float dc = to_float(a.dy.at<T>(t)[channel]) * activate(GatedActivation::kSilu, window.convolved(weight, 0)).slope;
#pragma unroll
    for (int m = s; m < K - 1; ++m) sums[m] += weight[m - s][0] * dc;
  }
#pragma unroll
  for (int m = 0; m < K - 1; ++m) a.d_context[(sequence * (K - 1) + m) * in.x.width + channel] = sums[m];
}

template <typename T>
__global__ void __launch_bounds__(kThreads) conv_context_kernel(ConvInput in, T* next) {
  const int64_t channel = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (channel >= in.x.width) return;
  const int64_t sequence = blockIdx.y / (in.taps - 1), slot = blockIdx.y % (in.taps - 1), end = (sequence + 1) * in.length;
  const T* row = in.row<T>(end - (in.taps - 1) + slot, in.segment_start(end - 1));
  next[blockIdx.y * in.x.width + channel] = row != nullptr ? row[channel] : from_float<T>(0.0f);
}

template <typename Body>
void with_taps(int64_t taps, Body&& body) {
  if (taps == 2) return body(std::integral_constant<int, 2>{});
  if (taps == 3) return body(std::integral_constant<int, 3>{});
  return body(std::integral_constant<int, 4>{});
}

bool context_vectorizable(const ConvInput& in) { return in.context == nullptr || (reinterpret_cast<uintptr_t>(in.context) % 16 == 0 && in.x.width % kVectorElements == 0); }

}  // namespace

void causal_conv_forward_cuda(const ConvForward& a, Stream stream) {
  const bool vectors = vectorizable(a.in.x) && vectorizable(a.y) && context_vectorizable(a.in);
  with_vectors(a.in.x.element, vectors, [&](auto tag, auto n) {
    with_taps(a.in.taps, [&](auto k) {
      const dim3 grid(blocks_for(a.in.x.count, kConvStretch), blocks_for(a.in.x.width, n() * kThreads));
      conv_forward_kernel<decltype(tag), n(), k()><<<grid, kThreads, 0, stream>>>(a);
    });
  });
  check_launch("causal_conv_forward");
}

void causal_conv_context_cuda(const ConvInput& in, int64_t sequences, void* next, Stream stream) {
  with_device_type(in.x.element, [&](auto tag) {
    using T = decltype(tag);
    const dim3 grid(blocks_for(in.x.width, kThreads), static_cast<unsigned int>(sequences * (in.taps - 1)));
    conv_context_kernel<T><<<grid, kThreads, 0, stream>>>(in, static_cast<T*>(next));
  });
  check_launch("causal_conv_context");
}

void causal_conv_backward_cuda(const ConvBackward& a, int64_t sequences, Stream stream) {
  const bool vectors = vectorizable(a.in.x) && vectorizable(a.dy) && vectorizable(a.dx) && context_vectorizable(a.in);
  const int64_t sets = conv_partial_count(a.in.x.count);
  with_vectors(a.in.x.element, vectors, [&](auto tag, auto n) {
    with_taps(a.in.taps, [&](auto k) {
      using T = decltype(tag);
      const dim3 grid(static_cast<unsigned int>(sets), blocks_for(a.in.x.width, n() * kThreads));
      conv_backward_kernel<T, n(), k()><<<grid, kThreads, 0, stream>>>(a);
      if (a.d_context != nullptr) {
        const dim3 context_grid(blocks_for(a.in.x.width, kThreads), static_cast<unsigned int>(sequences));
        conv_d_context_kernel<T, k()><<<context_grid, kThreads, 0, stream>>>(a);
      }
    });
  });
  check_launch("causal_conv_backward");
  if (a.partials != nullptr) column_sum<float>(a.partials, sets, a.in.x.width * a.in.taps, SinkFinish{a.sink}, stream);
}

}  // namespace oom::ops
