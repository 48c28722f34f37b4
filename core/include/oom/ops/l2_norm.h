/// L2 norm of heads: y = x rsqrt(sum(x^2) + eps), the queries and keys of the delta rule.
///
/// Rows are the last dimension of [tokens, heads, head_dim]; FP32 or BF16 with a contiguous last dimension and at most two leading strides. FP32 inside,
/// one rounding. Work goes to the current device and stream. Deterministic.
#pragma once

#include <ATen/core/Tensor.h>

#include "oom/error.h"

namespace oom::ops {

struct L2Output {
  at::Tensor y;     ///< like x, contiguous
  at::Tensor rstd;  ///< FP32 [rows], which backward needs
};
OOM_API L2Output l2_norm_forward(const at::Tensor& x, double eps);
/// Writes dx (may be dy; strided at will) for `dy`.
OOM_API void l2_norm_backward_out(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd);

}  // namespace oom::ops
