#include "ops/attention_tiled_rows.h"
#include "ops/exponentials.cuh"
#include "ops/vector.cuh"

namespace oom::ops {
namespace {

constexpr int kThreads = 256;
constexpr int kUnrolled = 4;                        // columns a thread has under way
constexpr int64_t kPiece = kThreads * kUnrolled;

// A block a row. Columns are taken piece by piece; a piece of FP32 is read by all threads before any writes its narrower result, which ends before
// the next piece begins.

template <typename T>
__global__ void __launch_bounds__(kThreads) softmax_kernel(TiledBlock block) {
  const int64_t row = blockIdx.x;
  const TiledRow place = tiled_row(block, row);
  float* scores = block.scores + row * block.keys;
  T* probability = reinterpret_cast<T*>(scores);
  Exponentials seen{-INFINITY, 0.0f};
  for (int64_t c = place.begin + threadIdx.x; c < place.end; c += kThreads) seen.add(block.scale * scores[c]);
  seen = block_join<kThreads>(seen);
  if (threadIdx.x == 0) block.lse[place.lse] = seen.largest + logf(seen.sum);
  const float reciprocal = 1.0f / seen.sum;
  for (int64_t piece = 0; piece < block.keys; piece += kPiece) {
    float value[kUnrolled];
#pragma unroll
    for (int i = 0; i < kUnrolled; ++i) {
      const int64_t c = piece + i * kThreads + threadIdx.x;
      value[i] = c >= place.begin && c < place.end ? expf(block.scale * scores[c] - seen.largest) * reciprocal : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kUnrolled; ++i) {
      const int64_t c = piece + i * kThreads + threadIdx.x;
      if (c < block.keys) probability[c] = from_float<T>(value[i]);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) score_gradient_kernel(TiledBlock block, TiledGradient gradient) {
  const int64_t row = blockIdx.x;
  const TiledRow place = tiled_row(block, row);
  float* scores = block.scores + row * block.keys;
  float* dprobability = gradient.dprobability + row * block.keys;
  T* probability = reinterpret_cast<T*>(scores);
  T* dscores = reinterpret_cast<T*>(dprobability);
  const T* out = static_cast<const T*>(gradient.out) + row * gradient.head_dim;
  const T* dout = static_cast<const T*>(gradient.dout) + row * gradient.head_dim;
  float product = 0;
  for (int64_t d = threadIdx.x; d < gradient.head_dim; d += kThreads) product += to_float(out[d]) * to_float(dout[d]);
  const float delta = group_sum<kThreads>(product), lse = block.lse[place.lse];
  for (int64_t piece = 0; piece < block.keys; piece += kPiece) {
    float p[kUnrolled], ds[kUnrolled];
#pragma unroll
    for (int i = 0; i < kUnrolled; ++i) {
      const int64_t c = piece + i * kThreads + threadIdx.x;
      const bool seen = c >= place.begin && c < place.end;
      p[i] = seen ? expf(block.scale * scores[c] - lse) : 0.0f;
      ds[i] = seen ? block.scale * p[i] * (dprobability[c] - delta) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kUnrolled; ++i) {
      const int64_t c = piece + i * kThreads + threadIdx.x;
      if (c >= block.keys) continue;
      probability[c] = from_float<T>(p[i]);
      dscores[c] = from_float<T>(ds[i]);
    }
  }
}

}  // namespace

void tiled_softmax_cuda(const TiledBlock& block, Stream stream) {
  with_device_type(block.element, [&](auto tag) { softmax_kernel<decltype(tag)><<<static_cast<unsigned int>(block.rows()), kThreads, 0, stream>>>(block); });
  check_launch("tiled_softmax");
}

void tiled_gradient_cuda(const TiledBlock& block, const TiledGradient& gradient, Stream stream) {
  with_device_type(block.element,
                   [&](auto tag) { score_gradient_kernel<decltype(tag)><<<static_cast<unsigned int>(block.rows()), kThreads, 0, stream>>>(block, gradient); });
  check_launch("tiled_gradient");
}

}  // namespace oom::ops
