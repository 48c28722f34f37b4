/// Gates of the gated delta rule: how much each head forgets and how much it learns from a token.
///
///   log_decay = -exp(A_log) softplus(a + dt_bias),   beta = sigmoid(b),
/// a, b [T, Hv] with contiguous heads and rows strided at will, FP32 or BF16; A_log, dt_bias [Hv], FP32 or BF16; results FP32. FP32 inside.
/// Work goes to the current device and stream. Deterministic.
#pragma once

#include <ATen/core/Tensor.h>

#include "oom/error.h"
#include "oom/ops/gradient_sink.h"

namespace oom::ops {

struct DeltaRuleGates {
  at::Tensor log_decay;  ///< FP32 [T, Hv]
  at::Tensor beta;       ///< FP32 [T, Hv]
};
OOM_API DeltaRuleGates delta_rule_gates_forward(const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_log, const at::Tensor& dt_bias);

struct DeltaRuleGateGradients {
  at::Tensor da;  ///< [T, Hv], like a
  at::Tensor db;  ///< [T, Hv], like b
};
/// `d_log_decay`, `d_beta` FP32 [T, Hv] contiguous. The parameters' gradients go to the sinks.
OOM_API DeltaRuleGateGradients delta_rule_gates_backward(const at::Tensor& d_log_decay, const at::Tensor& d_beta, const at::Tensor& a,
                                                         const at::Tensor& b, const at::Tensor& a_log, const at::Tensor& dt_bias,
                                                         const GradientSink& a_log_sink, const GradientSink& dt_bias_sink);

}  // namespace oom::ops
