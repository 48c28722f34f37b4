/// Depthwise causal convolution over tokens, then SiLU, with a left context handed in and out and with its gradients written out.
///
/// Legend: T = B * S tokens, C channels, K taps (kMinimumTaps to kMaximumTaps).
///   c[t, i] = sum over j < K of w[i, j] x[t - (K - 1) + j, i],   y = c sigmoid(c).
/// w[i, K - 1] meets the token itself. Rows before a segment's start count as zero, except that a segment that begins a sequence sees the context:
/// the K - 1 rows that came before. FP32 inside, one rounding. Nothing is saved: backward computes c again.
/// x, y, dy, dx are [T, C] with contiguous channels and rows strided at will, FP32 or BF16, one type; the weight is [C, K] or [C, 1, K] contiguous,
/// FP32 or BF16. Runs on the current device and stream. Deterministic.
#pragma once

#include <ATen/core/Tensor.h>

#include "oom/error.h"
#include "oom/ops/gradient_sink.h"
#include "oom/ops/segments.h"

namespace oom::ops {

constexpr int64_t kMinimumTaps = 2;
constexpr int64_t kMaximumTaps = 4;

/// Returns y. `context` [B, K - 1, C] contiguous, of x's type, oldest row first; undefined: zeros.
OOM_API at::Tensor causal_conv_forward(const at::Tensor& x, const at::Tensor& weight, const Segments& segments, const at::Tensor& context = {});

/// Returns the context of the tokens that follow: the last K - 1 rows of each sequence (of `context`, where it has fewer), zeros for rows before the
/// last segment's start.
OOM_API at::Tensor causal_conv_context(const at::Tensor& x, int64_t taps, const Segments& segments, const at::Tensor& context = {});

/// Writes dx [T, C] (no operand itself) and returns the gradient of `context`, FP32 [B, K - 1, C], if `wants_context`. `d_next_context` FP32 [B, K - 1, C] is the
/// gradient of what causal_conv_context returned; undefined: zero. The weight's gradient goes to the sink.
OOM_API at::Tensor causal_conv_backward(const at::Tensor& dx, const GradientSink& weight_sink, const at::Tensor& dy, const at::Tensor& x,
                                        const at::Tensor& weight, const Segments& segments, const at::Tensor& context,
                                        const at::Tensor& d_next_context, bool wants_context);

}  // namespace oom::ops
