/// The gated feed-forward network that every token takes: y = W_down (act(W_gate x) * (W_up x)), with its gradients written out.
///
/// Legend: T tokens, H hidden, I width. x, y [T,H]; gate, up [I,H]; down [H,I], contiguous. FP32 or BF16, one type. Runs on the current device and
/// stream. Workspace: 4 T I elements in forward (Z, 2 T I, is one of the results), 5 T I beside the operands in backward.
#pragma once

#include <ATen/core/Tensor.h>

#include "oom/error.h"
#include "oom/ops/flavour.h"
#include "oom/ops/gradient_sink.h"

namespace oom::ops {

/// Borrowed weights.
struct GatedMlpWeights {
  at::Tensor gate, up, down;
  GatedActivation activation = GatedActivation::kSilu;
};
struct GatedMlpSinks {
  GradientSink gate, up, down;
};
struct GatedMlpForward {
  at::Tensor y;
  at::Tensor z;  ///< [T, 2I]: all that backward needs beside x
};

OOM_API GatedMlpForward gated_mlp_forward(const at::Tensor& x, const GatedMlpWeights& weights);
/// Adds dx to `dx` (undefined: a new tensor) and returns it.
OOM_API at::Tensor gated_mlp_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& z, const GatedMlpWeights& weights, const GatedMlpSinks& sinks,
                                      const at::Tensor& dx = {});

}  // namespace oom::ops
