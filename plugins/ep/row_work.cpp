#include "row_work.h"

#include <ATen/ops/remainder.h>
#include <oom/ops/permutation.h>

namespace oom::ep {
namespace {

at::Tensor flat(const at::Tensor& index) { return index.view(-1); }

}  // namespace

void pack_inputs(const Parcels& out, const at::Tensor& x, const at::Tensor& indices, const ChunkOrder& order, int64_t owned_experts) {
  const int64_t rows = order.token_of.numel();
  ops::copy_rows(out.rows(rows), x, order.token_of);
  ops::copy_rows(out.experts(rows), at::remainder(indices, owned_experts).view({rows, 1}), {}, flat(order.row_of));
}

void pack_gradients(const Parcels& out, const at::Tensor& dy, const at::Tensor& weights, const ChunkOrder& order) {
  const int64_t rows = order.token_of.numel();
  ops::copy_rows(out.rows(rows), dy, order.token_of);
  ops::copy_rows(out.weights(rows), weights.view({rows, 1}), {}, flat(order.row_of));
}

void run_forward(const Parcels& received, int64_t rows, const ops::ExpertWeights& weights, OwnerRows* kept) {
  if (rows == 0) return;
  const ops::Permutation by_expert = ops::make_permutation(received.experts(rows), weights.gate_up.size(0));
  const at::Tensor x = ops::gather_rows(received.rows(rows), by_expert.token_of);
  const ops::ExpertsForward computed = ops::experts_forward(x, by_expert.ends, weights, /*save_z=*/kept != nullptr);
  ops::copy_rows(received.rows(rows), computed.y_rows, flat(by_expert.row_of));
  if (kept) *kept = {x, computed.z, by_expert.ends, by_expert.token_of, flat(by_expert.row_of)};
}

OwnerRows make_rows(const Parcels& received, int64_t rows, const ops::ExpertWeights& weights) {
  if (rows == 0) return {};
  const ops::Permutation by_expert = ops::make_permutation(received.experts(rows), weights.gate_up.size(0));
  const at::Tensor x = ops::gather_rows(received.rows(rows), by_expert.token_of);
  return {x, ops::experts_gate_up(x, by_expert.ends, weights), by_expert.ends, by_expert.token_of, flat(by_expert.row_of)};
}

void run_backward(const OwnerRows& rows, const Parcels& received_gradients, const ops::ExpertWeights& weights, const ops::ExpertSinks& sinks) {
  if (!rows.x.defined()) {
    for (const ops::GradientSink& sink : {sinks.gate_up, sinks.down}) {
      if (!sink.accumulate) sink.tensor.zero_();
    }
    return;
  }
  const int64_t count = rows.x.size(0);
  const at::Tensor dy = ops::gather_rows(received_gradients.rows(count), rows.token_of);
  const at::Tensor row_weights = ops::gather_rows(received_gradients.weights(count), rows.token_of).view(-1);
  const ops::ExpertsBackward gradients = ops::experts_backward(dy, row_weights, rows.x, rows.z, rows.ends, weights, sinks);
  ops::copy_rows(received_gradients.rows(count), gradients.dx_rows, rows.row_of);
  ops::copy_rows(received_gradients.weights(count), gradients.d_row_weights.view({count, 1}), rows.row_of);
}

}  // namespace oom::ep
