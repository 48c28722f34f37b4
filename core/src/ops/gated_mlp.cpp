#include "oom/ops/gated_mlp.h"

#include <ATen/ops/cat.h>

#include "oom/ops/activation.h"
#include "oom/ops/linear.h"

namespace oom::ops {

GatedMlpForward gated_mlp_forward(const at::Tensor& x, const GatedMlpWeights& weights) {
  GatedMlpForward forward;
  forward.z = at::cat({linear_forward(x, weights.gate), linear_forward(x, weights.up)}, 1);
  forward.y = linear_forward(gated_activation_forward(forward.z, weights.activation), weights.down);
  return forward;
}

at::Tensor gated_mlp_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& z, const GatedMlpWeights& weights, const GatedMlpSinks& sinks, const at::Tensor& dx) {
  const GatedGradient gradient = gated_activation_backward(linear_dgrad(dy, weights.down), z, weights.activation);
  linear_wgrad(sinks.down, dy, gradient.a);
  const int64_t width = z.size(1) / 2;
  const at::Tensor dgate = gradient.dz.narrow(1, 0, width).contiguous(), dup = gradient.dz.narrow(1, width, width).contiguous();
  linear_wgrad(sinks.gate, dgate, x);
  linear_wgrad(sinks.up, dup, x);
  at::Tensor sum = dx;
  if (sum.defined()) {
    linear_dgrad_out(sum, dgate, weights.gate, /*accumulate=*/true);
  } else {
    sum = linear_dgrad(dgate, weights.gate);
  }
  linear_dgrad_out(sum, dup, weights.up, /*accumulate=*/true);
  return sum;
}

}  // namespace oom::ops
