/// RMS norms, forward and backward, in the four flavours of the model families (flavour.h).
///
/// Rows are the last dimension: [tokens, hidden], or [tokens, heads, head_dim] for norms per head. Activations are FP32 or BF16 with a contiguous
/// last dimension and at most two leading strides, so that a slice of a fused projection needs no copy. The weight is [width], FP32 or BF16 whatever
/// the activations are. Statistics and sums are FP32. Work goes to the current device and stream. Deterministic.
#pragma once

#include <ATen/core/Tensor.h>

#include "oom/error.h"
#include "oom/ops/flavour.h"
#include "oom/ops/gradient_sink.h"

namespace oom::ops {

struct NormOutput {
  at::Tensor y;     ///< like x, contiguous
  at::Tensor rstd;  ///< FP32 [rows]: rsqrt(mean(x^2) + eps), which backward needs
};

/// Normalises each row of `x`. `weight` may be undefined for kPlain; `gate` (of x's sizes) is given for kGated alone.
OOM_API NormOutput rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps, NormFlavour flavour, const at::Tensor& gate = {});
/// The same into `y` (may be x itself) and `rstd` (contiguous FP32, one element a row).
OOM_API void rms_norm_forward_out(const at::Tensor& y, const at::Tensor& rstd, const at::Tensor& x, const at::Tensor& weight, double eps,
                                  NormFlavour flavour, const at::Tensor& gate = {});

struct NormGradient {
  at::Tensor dx;
  at::Tensor dgate;  ///< kGated alone
};

/// Returns the gradients of `x` and the gate, and puts the weight's into `weight_sink` (an undefined tensor there: it is not wanted).
/// `residual_gradient`, when given, is added to dx before its one rounding: the gradient that reached x along the residual stream.
OOM_API NormGradient rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd,
                                       NormFlavour flavour, const GradientSink& weight_sink, const at::Tensor& gate = {},
                                       const at::Tensor& residual_gradient = {});
/// The same into `out`, whose tensors may be strided; dx may be dy or residual_gradient itself.
OOM_API void rms_norm_backward_out(const NormGradient& out, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                                   const at::Tensor& rstd, NormFlavour flavour, const GradientSink& weight_sink, const at::Tensor& gate = {},
                                   const at::Tensor& residual_gradient = {});

}  // namespace oom::ops
