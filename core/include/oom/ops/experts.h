/// The feed-forward networks of routed experts over rows sorted by expert: y_r = W_down (act(gate) * up), with [gate; up] = W_gate_up x_r.
///
/// Legend: R rows, E experts, H hidden, I expert width. Rows [R,H] contiguous, sorted by expert; `ends` int32 [E] on their device (grouped_gemm.h).
/// FP32 or BF16, one type. Routing weights are applied after the network, in FP32, when rows are combined (permutation.h); their gradient and
/// their effect on the others' are made here from dA alone (I wide), so y_rows are not needed in backward:
///   dA' = dy W_down, ds = rowsum(dA' A), dW_down = dy^T (s A), dZ = act'(Z)(s dA'), dx = dZ W_gate_up, dW_gate_up = dZ^T x.
/// Runs on the current device and stream. Rows at and past ends[E-1] come out as zero and are never read.
#pragma once

#include <ATen/core/Tensor.h>

#include "oom/error.h"
#include "oom/ops/flavour.h"
#include "oom/ops/gradient_sink.h"

namespace oom::ops {

/// Borrowed working weights of the experts, contiguous, as Hugging Face stores them.
struct ExpertWeights {
  at::Tensor gate_up;  ///< [E,2I,H]: gate rows, then up rows
  at::Tensor down;     ///< [E,H,I]
  GatedActivation activation = GatedActivation::kSilu;
};

/// Where the experts' gradients go; an undefined tensor skips that product (a frozen weight).
struct ExpertSinks {
  GradientSink gate_up;  ///< [E,2I,H]
  GradientSink down;     ///< [E,H,I]
};

struct ExpertsForward {
  at::Tensor y_rows;  ///< [R,H], without routing weights
  at::Tensor z;       ///< [R,2I], when asked for: all that backward needs beside x
};
struct ExpertsBackward {
  at::Tensor dx_rows;        ///< [R,H]
  at::Tensor d_row_weights;  ///< FP32 [R]; undefined without row weights
};

/// What decides how much memory the calls below take beside operands and results.
struct ExpertsProblem {
  c10::DeviceType device = c10::DeviceType::CPU;
  at::ScalarType dtype = at::kBFloat16;
  int64_t rows = 0, experts = 0, hidden = 0, width = 0;
};
OOM_API int64_t experts_forward_workspace_bytes(const ExpertsProblem& problem, bool save_z);
OOM_API int64_t experts_backward_workspace_bytes(const ExpertsProblem& problem);

OOM_API ExpertsForward experts_forward(const at::Tensor& x_rows, const at::Tensor& ends, const ExpertWeights& weights, bool save_z);
/// Returns Z [R,2I] again, for a backward whose forward did not save it.
OOM_API at::Tensor experts_gate_up(const at::Tensor& x_rows, const at::Tensor& ends, const ExpertWeights& weights);
/// `dy_rows` [R,H] is the gradient of a row's token, not yet times its routing weight `row_weights` (FP32 [R]; undefined: all one). `z` is
/// overwritten by its gradient.
OOM_API ExpertsBackward experts_backward(const at::Tensor& dy_rows, const at::Tensor& row_weights, const at::Tensor& x_rows, const at::Tensor& z,
                                         const at::Tensor& ends, const ExpertWeights& weights, const ExpertSinks& sinks);

}  // namespace oom::ops
