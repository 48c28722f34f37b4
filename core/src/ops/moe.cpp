#include "oom/ops/moe.h"

namespace oom::ops {

MoeForward moe_forward(const at::Tensor& x, const Routing& routing, const ExpertWeights& weights, bool save_z, const CombineTerms& terms) {
  OOM_CHECK(x.dim() == 2 && routing.indices.dim() == 2 && routing.indices.size(0) == x.size(0), "tokens ", x.sizes(), " with routing ",
            routing.indices.sizes());
  MoeForward result{.permutation = make_permutation(routing.indices, weights.gate_up.size(0))};
  const ExpertsForward experts = experts_forward(gather_rows(x, result.permutation.token_of), result.permutation.ends, weights, save_z);
  result.z = experts.z;
  CombineTerms weighted = terms;
  weighted.weights = routing.weights;
  result.y = combine(experts.y_rows, result.permutation.row_of, weighted);
  return result;
}

MoeBackward moe_backward(const at::Tensor& dy, const at::Tensor& x, const Routing& routing, const Permutation& permutation, const at::Tensor& z,
                         const ExpertWeights& weights, const ExpertSinks& sinks, const at::Tensor& dx_residual) {
  OOM_CHECK(dy.sizes() == x.sizes(), "dy ", dy.sizes(), " for x ", x.sizes());
  const at::Tensor x_rows = gather_rows(x, permutation.token_of), dy_rows = gather_rows(dy, permutation.token_of);
  const at::Tensor gate_up = z.defined() ? z : experts_gate_up(x_rows, permutation.ends, weights);
  const ExpertsBackward rows =
      experts_backward(dy_rows, choices_to_rows(routing.weights, permutation.row_of), x_rows, gate_up, permutation.ends, weights, sinks);
  return {combine(rows.dx_rows, permutation.row_of, {.residual = dx_residual}), rows_to_choices(rows.d_row_weights, permutation.row_of)};
}

}  // namespace oom::ops
