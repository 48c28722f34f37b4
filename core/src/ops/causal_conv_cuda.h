/// Arguments of the causal convolution, what both devices share of it, and its CUDA launches.
#pragma once

#include "ops/element.h"

namespace oom::ops {

/// The rows that a convolution reads, context included.
struct ConvInput {
  Rows x;
  Array weight;  ///< [C, K]
  int64_t taps = 0;
  int64_t length = 1;               ///< rows of a sequence
  const int32_t* starts = nullptr;  ///< [segments + 1], readable where the kernel runs; null: each sequence is one segment
  int64_t segments = 0;
  const void* context = nullptr;    ///< [B, K - 1, C] of x's type; null: zeros

  /// First row of the segment that holds row t.
  OOM_HOST_DEVICE int64_t segment_start(int64_t t) const {
    if (starts == nullptr) return t / length * length;
    int64_t low = 0, high = segments;  // starts[low] <= t < starts[high]
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (starts[middle] <= t ? low : high) = middle;
    }
    return starts[low];
  }
  /// Row `position`, at most K - 1 rows before a segment's `start`, as its tokens see it; null: zeros.
  template <typename T>
  OOM_HOST_DEVICE const T* row(int64_t position, int64_t start) const {
    if (position >= start) return x.at<T>(position);
    if (context == nullptr || start % length != 0) return nullptr;
    return static_cast<const T*>(context) + (start / length * (taps - 1) + taps - 1 + position - start) * x.width;
  }
  /// Where row t, of the last segment of its sequence and one of its last K - 1 rows, lies in the next context [B, K - 1]; -1: nowhere. Also for rows of
  /// the context itself, which lie before t = 0 of their sequence.
  OOM_HOST_DEVICE int64_t next_slot(int64_t t, int64_t sequence) const {
    const int64_t end = (sequence + 1) * length, slot = taps - 1 + t - end;
    if (slot < 0) return -1;
    const int64_t start = segment_start(end - 1);
    return t >= start || start == sequence * length ? sequence * (taps - 1) + slot : -1;
  }
};

struct ConvForward {
  ConvInput in;
  Rows y;
};

struct ConvBackward {
  ConvInput in;
  Rows dy, dx;
  const float* d_next_context = nullptr;  ///< [B, K - 1, C]; null: zero
  float* d_context = nullptr;             ///< [B, K - 1, C]; null: not wanted
  Sink sink;                              ///< [C, K]
  float* partials = nullptr;              ///< CUDA: [conv_partial_count(T), C, K]; null: the weight's gradient is not wanted
};

/// Stretches of kConvStretch tokens are dealt to so many sets, whose weight gradients are summed apart.
constexpr int64_t kConvStretch = 64;
inline int64_t conv_partial_count(int64_t tokens) {
  const int64_t stretches = (tokens + kConvStretch - 1) / kConvStretch;
  return stretches < 64 ? stretches : 64;
}

void causal_conv_forward_cuda(const ConvForward& arguments, Stream stream);
/// Writes the next context to `next` [B, K - 1, C] of x's type.
void causal_conv_context_cuda(const ConvInput& in, int64_t sequences, void* next, Stream stream);
void causal_conv_backward_cuda(const ConvBackward& arguments, int64_t sequences, Stream stream);

}  // namespace oom::ops
