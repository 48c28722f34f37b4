/// Gated activations of feed-forward networks, with the fused backward of routed experts, and the soft cap of logits.
///
/// Z = [rows, 2 I] holds gate and up halves: A = act(gate) * up. FP32 or BF16; rows contiguous, row strides at will. FP32 inside, one rounding a result.
/// Work goes to the current device and stream. Deterministic.
#pragma once

#include <ATen/core/Tensor.h>

#include "oom/error.h"
#include "oom/ops/flavour.h"

namespace oom::ops {

/// Returns A [rows, I].
OOM_API at::Tensor gated_activation_forward(const at::Tensor& z, GatedActivation kind);
OOM_API void gated_activation_forward_out(const at::Tensor& a, const at::Tensor& z, GatedActivation kind);

struct GatedGradient {
  at::Tensor a;          ///< [rows, I]: s * A, the operand of the down projection's weight gradient; A without row weights; may be `da`
  at::Tensor d_weights;  ///< FP32 [rows]: rowsum(dA * A), the gradient of the row weights; undefined without them
  at::Tensor dz;         ///< [rows, 2 I]; may be `z`
};

/// For y = s * (A W^T), with s = row_weights (FP32 [rows]; undefined: a dense network, all one) and `da` [rows, I] = dy W, the gradient before the
/// row weight: returns s A, rowsum(dA A), and dZ from s dA. `z` is overwritten by dZ when `dz_in_place`.
OOM_API GatedGradient gated_activation_backward(const at::Tensor& da, const at::Tensor& z, GatedActivation kind, const at::Tensor& row_weights = {},
                                                bool dz_in_place = false);
/// The same into the tensors of `out`.
OOM_API void gated_activation_backward_out(const GatedGradient& out, const at::Tensor& da, const at::Tensor& z, GatedActivation kind,
                                           const at::Tensor& row_weights = {});

/// y = cap * tanh(x / cap), into `y` (may be x).
OOM_API void soft_cap_forward_out(const at::Tensor& y, const at::Tensor& x, double cap);
/// dx = dy * (1 - (y / cap)^2) from the capped value `y`, into `dx` (may be dy).
OOM_API void soft_cap_backward_out(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& y, double cap);

}  // namespace oom::ops
