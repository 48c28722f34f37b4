/// Dense products of a linear layer, with their gradients written out: y = x W^T.
///
/// Weights are [out, in] and contiguous, as checkpoints store them. Activations are [..., in] with a contiguous last dimension. FP32 or BF16, one
/// type for all operands of a call; products accumulate in FP32, and FP32 operands are multiplied in true FP32 on every device (configure_math).
/// Work goes to the current device and stream; on CUDA nothing waits for the device. Workspace: cuBLAS's own, per thread and stream.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "oom/error.h"
#include "oom/ops/gradient_sink.h"

namespace oom::ops {

/// Sets LibTorch's process-wide mathematics: no TF32, no reduced-precision split sums in BF16 products. Call once, before the first operator.
OOM_API void configure_math();

/// Returns x W^T as [..., out] in `out_dtype` (the operands' own type, or FP32 for logits whose rounding matters).
OOM_API at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& weight, std::optional<at::ScalarType> out_dtype = std::nullopt);
/// Writes x W^T into `y` [..., out], contiguous, of the operands' type or FP32.
OOM_API void linear_forward_out(const at::Tensor& y, const at::Tensor& x, const at::Tensor& weight);
/// Returns dx = dy W as [..., in], of dy's type.
OOM_API at::Tensor linear_dgrad(const at::Tensor& dy, const at::Tensor& weight);
/// Writes dx = dy W into `dx` [..., in] (accumulate: adds to it), contiguous, of dy's type or FP32. A BF16 product may be rounded before it is added
/// to BF16 (it is on CUDA).
OOM_API void linear_dgrad_out(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& weight, bool accumulate = false);
/// dW = dy^T x over all rows, into `sink` [out, in]. BF16 operands with an FP32 sink accumulate in FP32 without rounding in between.
OOM_API void linear_wgrad(const GradientSink& sink, const at::Tensor& dy, const at::Tensor& x);

}  // namespace oom::ops
