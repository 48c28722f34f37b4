/// Sigmoid gates: elementwise on attention outputs, one a token on shared experts.
///
/// FP32 or BF16 rows with a contiguous last dimension and at most two leading strides, so that the gates inside a query projection need no copy.
/// FP32 inside, one rounding. Work goes to the current device and stream. Deterministic.
#pragma once

#include <ATen/core/Tensor.h>

#include "oom/error.h"

namespace oom::ops {

/// y = x * sigmoid(gate), all of the same sizes; `y` may be x.
OOM_API void sigmoid_gate_forward_out(const at::Tensor& y, const at::Tensor& x, const at::Tensor& gate);
OOM_API at::Tensor sigmoid_gate_forward(const at::Tensor& x, const at::Tensor& gate);
/// dx = dy * sigmoid(gate), dgate = dy * x * sigmoid'(gate); `dx` may be dy, `dgate` may be gate.
OOM_API void sigmoid_gate_backward_out(const at::Tensor& dx, const at::Tensor& dgate, const at::Tensor& dy, const at::Tensor& x,
                                       const at::Tensor& gate);

/// Returns y[t] = sigmoid(gate[t]) * x[t], x [tokens, width], gate [tokens, 1] or [tokens] of either type.
OOM_API at::Tensor row_gate_forward(const at::Tensor& x, const at::Tensor& gate);

struct RowGateGradient {
  at::Tensor dx;     ///< like x
  at::Tensor dgate;  ///< like gate
};
/// Its backward: dx = sigmoid(gate) dy, dgate = rowsum(dy x) sigmoid'(gate).
OOM_API RowGateGradient row_gate_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& gate);

}  // namespace oom::ops
