#include "oom/ops/experts.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "oom/ops/activation.h"
#include "oom/ops/grouped_gemm.h"

namespace oom::ops {
namespace {

void require_weights(const ExpertWeights& weights) {
  const at::Tensor &gate_up = weights.gate_up, &down = weights.down;
  OOM_CHECK(gate_up.dim() == 3 && down.dim() == 3 && gate_up.size(0) == down.size(0) && gate_up.size(1) == 2 * down.size(2) &&
                gate_up.size(2) == down.size(1),
            "experts have gate_up [E,2I,H] and down [E,H,I]; got ", gate_up.sizes(), " and ", down.sizes());
}

}  // namespace

int64_t experts_forward_workspace_bytes(const ExpertsProblem& p, bool save_z) {
  const int64_t element = c10::elementSize(p.dtype), a = p.rows * p.width * element, y = p.rows * p.hidden * element;
  return save_z ? a : std::max(3 * a - y, a);  // Z makes room for y
}

int64_t experts_backward_workspace_bytes(const ExpertsProblem& p) {
  const int64_t element = c10::elementSize(p.dtype), da = p.rows * p.width * element, dx = p.rows * p.hidden * element;
  const int64_t product = grouped_wgrad_workspace_bytes({.device = p.device, .dtype = p.dtype, .experts = p.experts, .n = 2 * p.width, .k = p.hidden});
  return da + std::max<int64_t>(product - dx, 0);  // dx comes after the weights' gradients
}

at::Tensor experts_gate_up(const at::Tensor& x_rows, const at::Tensor& ends, const ExpertWeights& weights) {
  require_weights(weights);
  return grouped_forward(x_rows, weights.gate_up, ends);
}

ExpertsForward experts_forward(const at::Tensor& x_rows, const at::Tensor& ends, const ExpertWeights& weights, bool save_z) {
  at::Tensor z = experts_gate_up(x_rows, ends, weights);
  const at::Tensor a = gated_activation_forward(z, weights.activation);
  if (!save_z) z.reset();
  return {grouped_forward(a, weights.down, ends), z};
}

ExpertsBackward experts_backward(const at::Tensor& dy_rows, const at::Tensor& row_weights, const at::Tensor& x_rows, const at::Tensor& z,
                                 const at::Tensor& ends, const ExpertWeights& weights, const ExpertSinks& sinks) {
  require_weights(weights);
  const int64_t rows = dy_rows.size(0);
  OOM_CHECK(x_rows.sizes() == dy_rows.sizes() && z.dim() == 2 && z.size(0) == rows && z.size(1) == weights.gate_up.size(1), "dy ", dy_rows.sizes(),
            ", x ", x_rows.sizes(), ", z ", z.sizes(), " for experts ", weights.gate_up.sizes());
  OOM_CHECK(!row_weights.defined() || (row_weights.scalar_type() == at::kFloat && row_weights.numel() == rows), "row weights are FP32 [", rows, "]");
  at::Tensor d_row_weights;
  if (row_weights.defined()) d_row_weights = at::empty({rows}, row_weights.options());
  // dA' becomes s A and Z becomes dZ where they lie.
  const at::Tensor da = grouped_dgrad(dy_rows, weights.down, ends);
  gated_activation_backward_out({.a = da, .d_weights = d_row_weights, .dz = z}, da, z, weights.activation, row_weights);
  if (sinks.down.tensor.defined()) grouped_wgrad_into(sinks.down, dy_rows, da, ends);
  if (sinks.gate_up.tensor.defined()) grouped_wgrad_into(sinks.gate_up, z, x_rows, ends);
  return {grouped_dgrad(z, weights.gate_up, ends), d_row_weights};
}

}  // namespace oom::ops
