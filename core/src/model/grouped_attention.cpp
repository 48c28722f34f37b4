#include "model/grouped_attention.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "model/attention_rows.h"
#include "oom/ops/gate.h"
#include "oom/ops/linear.h"
#include "oom/ops/rms_norm.h"
#include "oom/ops/scale.h"

namespace oom {
inline namespace abi_1 {
namespace {

at::Tensor weight_of(const NormSettings& norm, const LayerWeights& weights) { return norm.weight >= 0 ? weights[norm.weight] : at::Tensor(); }
GradientSink sink_of(const NormSettings& norm, const LayerGradients& sinks) { return norm.weight >= 0 ? sinks[norm.weight] : GradientSink{}; }

}  // namespace

GroupedAttention::GroupedAttention(const AttentionSettings& settings) : settings_(settings), frequencies_(ops::rotary_frequencies(settings.rotary)) {}

struct GroupedAttention::Heads {
  int64_t first, count;          // query heads
  int64_t first_key, key_count;  // the key/value heads that they read
  bool first_of_key, last_of_key;

  Heads(const Slice& slice, int64_t heads_per_key)
      : first(slice.begin),
        count(slice.end - slice.begin),
        first_key(first / heads_per_key),
        key_count((slice.end - 1) / heads_per_key - first_key + 1),
        first_of_key(first % heads_per_key == 0),
        last_of_key(slice.end % heads_per_key == 0) {
    OOM_CHECK(slice.axis == Axis::kHeadGroup && count > 0 && (key_count == 1 || (first_of_key && last_of_key)), "heads ", slice.begin, " to ", slice.end,
              " lie neither within a key/value head nor cover whole ones of ", heads_per_key, " query heads");
  }
};

struct GroupedAttention::Projected {
  at::Tensor normed;
  // Before the head norms and their statistics; undefined without one.
  at::Tensor query_raw, query_rstd, key_raw, key_rstd, value_raw, value_rstd;
  at::Tensor query, key, value;  // [T, heads, D], queries and keys rotated
  at::Tensor gate;               // [T, heads, D]; undefined unless wanted
};

int64_t GroupedAttention::query_rows() const { return settings_.output_gate ? 2 * settings_.head_dim : settings_.head_dim; }

at::Tensor GroupedAttention::gate_of(const at::Tensor& normed, const MixerCall& call) const {
  const int64_t dim = settings_.head_dim;
  const at::Tensor weight = call.weights[settings_.query].view({settings_.query_heads, 2 * dim, -1}).narrow(1, dim, dim).reshape({settings_.query_heads * dim, -1});
  return ops::linear_forward(normed, weight);
}

GroupedAttention::Projected GroupedAttention::project_heads(const at::Tensor& x, const Heads& heads, const MixerCall& call, bool with_gate) const {
  const int64_t dim = settings_.head_dim;
  Projected projected;
  projected.normed = ops::rms_norm_forward(x, call.weights[settings_.input_norm.weight], settings_.input_norm.epsilon, settings_.input_norm.flavour).y;
  const ops::RotaryTable table = ops::rotary_table(frequencies_, call.sequence.positions, x.scalar_type());
  const auto shape = [&](int weight, int64_t first, int64_t count) { return ops::linear_forward(projected.normed, call.weights[weight].narrow(0, first * dim, count * dim)).view({x.size(0), count, dim}); };
  const auto normalise = [&](const at::Tensor& raw, const NormSettings& norm, at::Tensor& kept, at::Tensor& rstd) {
    if (!norm.present()) return raw;
    kept = raw;
    const ops::NormOutput normed = ops::rms_norm_forward(raw, weight_of(norm, call.weights), norm.epsilon, norm.flavour);
    rstd = normed.rstd;
    return normed.y;
  };
  at::Tensor query;
  if (settings_.output_gate && with_gate) {
    const at::Tensor both = ops::linear_forward(projected.normed, call.weights[settings_.query].narrow(0, heads.first * 2 * dim, heads.count * 2 * dim)).view({x.size(0), heads.count, 2 * dim});
    query = both.narrow(2, 0, dim);
    projected.gate = both.narrow(2, dim, dim);
  } else if (settings_.output_gate) {
    const at::Tensor weight = call.weights[settings_.query].view({settings_.query_heads, 2 * dim, -1}).narrow(0, heads.first, heads.count).narrow(1, 0, dim).reshape({heads.count * dim, -1});
    query = ops::linear_forward(projected.normed, weight).view({x.size(0), heads.count, dim});
  } else {
    query = shape(settings_.query, heads.first, heads.count);
  }
  projected.query = normalise(query, settings_.query_norm, projected.query_raw, projected.query_rstd);
  ops::rotary_forward_out(projected.query, projected.query, table);
  const at::Tensor key = shape(settings_.key, heads.first_key, heads.key_count);
  const at::Tensor value = settings_.value < 0 ? key : shape(settings_.value, heads.first_key, heads.key_count);
  projected.value = normalise(value, settings_.value_norm, projected.value_raw, projected.value_rstd);
  projected.key = normalise(key, settings_.key_norm, projected.key_raw, projected.key_rstd);
  ops::rotary_forward_out(projected.key, projected.key, table);
  return projected;
}

void GroupedAttention::attend(const at::Tensor& x, const MixerCall& call, const Keep& results) const {
  const Heads heads(call.slice, heads_per_key());
  const int64_t dim = settings_.head_dim;
  const Projected projected = project_heads(x, heads, call, /*with_gate=*/false);
  const model::AttentionRows rows(settings_, call);
  const ops::AttentionForward attended =
      ops::attention_forward(rows.attended(projected.query, heads.count), rows.attended(projected.key, heads.key_count), rows.attended(projected.value, heads.key_count), rows.options());
  at::Tensor to = results.output.narrow(1, heads.first * dim, heads.count * dim);
  to.copy_(attended.out.reshape({x.size(0), heads.count * dim}));
  results.log_sum_exp.narrow(1, heads.first, heads.count).copy_(rows.own_lse(attended.lse));
}

at::Tensor GroupedAttention::project(const at::Tensor& x, const at::Tensor& output, const MixerCall& call) const {
  at::Tensor attended = output;
  if (settings_.output_gate) {
    const NormSettings& input = settings_.input_norm;
    attended = ops::sigmoid_gate_forward(output, gate_of(ops::rms_norm_forward(x, call.weights[input.weight], input.epsilon, input.flavour).y, call));
  }
  at::Tensor y = ops::linear_forward(attended, call.weights[settings_.output]);
  if (const NormSettings& norm = settings_.output_norm; norm.present()) y = ops::rms_norm_forward(y, weight_of(norm, call.weights), norm.epsilon, norm.flavour).y;
  ops::add_scaled_out(y, x, y);
  return y;
}

at::Tensor GroupedAttention::project_backward(const at::Tensor& dy, const at::Tensor&, const at::Tensor& output, const MixerCall& call) const {
  const NormSettings& norm = settings_.output_norm;
  const at::Tensor product = ops::linear_forward(output, call.weights[settings_.output]);
  const at::Tensor rstd = ops::rms_norm_forward(product, weight_of(norm, call.weights), norm.epsilon, norm.flavour).rstd;
  return ops::rms_norm_backward(dy, product, weight_of(norm, call.weights), rstd, norm.flavour, sink_of(norm, *call.gradients)).dx;
}

void GroupedAttention::attend_backward(const at::Tensor& dprojected, const at::Tensor& x, const Keep& results, const MixerCall& call, CarriedState& key_sums,
                                       const at::Tensor& dnormed) const {
  const Heads heads(call.slice, heads_per_key());
  const LayerWeights& weights = call.weights;
  const LayerGradients& sinks = *call.gradients;
  const int64_t tokens = x.size(0), dim = settings_.head_dim, first = heads.first * dim, width = heads.count * dim;
  // The rows that a head of a projection has: queries may have their gates beside them.
  const auto rows_of = [&](int weight) { return weight == settings_.query ? query_rows() : dim; };
  const auto rows_of_sink = [&](int weight, int64_t head, int64_t count) {
    return GradientSink{sinks[weight].tensor.narrow(0, head * rows_of(weight), count * rows_of(weight)), sinks[weight].accumulate};
  };
  const Projected projected = project_heads(x, heads, call, /*with_gate=*/true);

  // Wo holds a group's heads in columns; a sink is contiguous.
  const at::Tensor output = results.output.narrow(1, first, width);
  {
    const at::Tensor columns = at::empty({dprojected.size(1), width}, sinks[settings_.output].tensor.options());
    at::Tensor read = output;
    if (settings_.output_gate) read = ops::sigmoid_gate_forward(output.unflatten(1, {heads.count, dim}), projected.gate).view({tokens, width});
    ops::linear_wgrad({columns, false}, dprojected, read);
    sinks[settings_.output].tensor.narrow(1, first, width).add_(columns);
  }
  at::Tensor dout = ops::linear_dgrad(dprojected, weights[settings_.output].narrow(1, first, width));
  at::Tensor dprojection;  // of Wq's product, where a gate lies beside each head's query
  if (settings_.output_gate) {
    dprojection = at::empty({tokens, heads.count, 2 * dim}, x.options());
    const at::Tensor dheads = dout.view({tokens, heads.count, dim});
    ops::sigmoid_gate_backward_out(dheads, dprojection.narrow(2, dim, dim), dheads, output.unflatten(1, {heads.count, dim}), projected.gate);
  }
  const model::AttentionRows rows(settings_, call);
  ops::AttentionBackward gradient = ops::attention_backward(rows.attended(dout, heads.count), rows.attended(projected.query, heads.count), rows.attended(projected.key, heads.key_count),
                                                            rows.attended(projected.value, heads.key_count), rows.attended(output, heads.count),
                                                            rows.attended_lse(results.log_sum_exp.narrow(1, heads.first, heads.count)), rows.options());
  dout.reset();

  const ops::RotaryTable table = ops::rotary_table(frequencies_, call.sequence.positions, x.scalar_type());
  const auto norm_gradient = [&](const at::Tensor& of_heads, const NormSettings& norm, const at::Tensor& raw, const at::Tensor& rstd) {
    const at::Tensor flat = norm.present() ? ops::rms_norm_backward(of_heads, raw, weight_of(norm, weights), rstd, norm.flavour, sink_of(norm, sinks)).dx : of_heads;
    return flat.view({tokens, -1});
  };
  const auto head_gradient = [&](const at::Tensor& of_heads, const NormSettings& norm, const at::Tensor& raw, const at::Tensor& rstd) {
    ops::rotary_backward_out(of_heads, of_heads, table);
    return norm_gradient(of_heads, norm, raw, rstd);
  };
  const auto add_product = [&](const at::Tensor& of_product, int weight, int64_t head, int64_t count) {
    ops::linear_wgrad(rows_of_sink(weight, head, count), of_product, projected.normed);
    ops::linear_dgrad_out(dnormed, of_product, weights[weight].narrow(0, head * rows_of(weight), count * rows_of(weight)), /*accumulate=*/true);
  };
  at::Tensor dquery = head_gradient(gradient.dq.contiguous().view({tokens, heads.count, dim}), settings_.query_norm, projected.query_raw, projected.query_rstd);
  if (settings_.output_gate) {
    dprojection.narrow(2, 0, dim).copy_(dquery.view({tokens, heads.count, dim}));
    dquery = dprojection.view({tokens, -1});
  }
  add_product(dquery, settings_.query, heads.first, heads.count);
  gradient.dq.reset();

  at::Tensor dkey = gradient.dk.contiguous().view({tokens, heads.key_count, dim}), dvalue = gradient.dv.contiguous().view({tokens, heads.key_count, dim});
  gradient = {};
  if (!heads.first_of_key || !heads.last_of_key) {
    if (heads.first_of_key) {
      key_sums.tensors = {dkey.to(at::kFloat), dvalue.to(at::kFloat)};
    } else {
      key_sums.tensors[0].add_(dkey);
      key_sums.tensors[1].add_(dvalue);
    }
    if (!heads.last_of_key) return;
    dkey = key_sums.tensors[0].to(x.scalar_type());
    dvalue = key_sums.tensors[1].to(x.scalar_type());
    key_sums.tensors.clear();
  }
  dkey = head_gradient(dkey, settings_.key_norm, projected.key_raw, projected.key_rstd);
  dvalue = norm_gradient(dvalue, settings_.value_norm, projected.value_raw, projected.value_rstd);
  if (settings_.value < 0) {
    ops::add_scaled_out(dkey, dkey, dvalue);
  } else {
    add_product(dvalue, settings_.value, heads.first_key, heads.key_count);
  }
  add_product(dkey, settings_.key, heads.first_key, heads.key_count);
}

at::Tensor GroupedAttention::enter_backward(const at::Tensor& dnormed, const at::Tensor& dy, const at::Tensor& x, const MixerCall& call) const {
  const NormSettings& norm = settings_.input_norm;
  const at::Tensor rstd = ops::rms_norm_forward(x, call.weights[norm.weight], norm.epsilon, norm.flavour).rstd;
  return ops::rms_norm_backward(dnormed.to(x.scalar_type()), x, call.weights[norm.weight], rstd, norm.flavour, (*call.gradients)[norm.weight], {}, dy).dx;
}

SublayerCost GroupedAttention::cost(Pass pass, int64_t batch, int64_t length, int64_t element_bytes, const Slice& slice) const {
  const double tokens = static_cast<double>(batch * length), element = static_cast<double>(element_bytes), rows = tokens * element;
  const double hidden = static_cast<double>(settings_.hidden), dim = static_cast<double>(settings_.head_dim);
  SublayerCost cost;
  if (pass == Pass::kProject || pass == Pass::kEnterBackward) {
    const double width = static_cast<double>(settings_.query_heads) * dim;
    const double gate = settings_.output_gate ? width : 0;
    if (pass == Pass::kProject) cost.gemm_flops = 2 * tokens * hidden * (width + gate);
    cost.device_bytes = pass == Pass::kProject ? rows * (3 * hidden + width + 4 * gate) : tokens * (4 * hidden + 8 * hidden * element);
    cost.workspace_bytes = static_cast<int64_t>(std::min(tokens, 65536.0) * element * (pass == Pass::kProject ? hidden + (gate > 0 ? hidden + 2 * gate : 0) : 3 * hidden));
    return cost;
  }
  const Heads heads(slice, heads_per_key());
  const double query = static_cast<double>(heads.count) * dim, key = static_cast<double>(heads.key_count) * dim;
  const double span = settings_.window_tokens > 0 ? std::min<double>(static_cast<double>(settings_.window_tokens), static_cast<double>(length) / 2) : static_cast<double>(length) / 2;
  const double attention = 4 * tokens * span * query;
  const ops::AttentionProblem problem{.device = c10::DeviceType::CUDA, .dtype = element_bytes == 4 ? at::kFloat : at::kBFloat16, .batch = batch, .tokens = length, .query_heads = heads.count,
                                      .kv_heads = heads.key_count, .head_dim = settings_.head_dim, .window_tokens = settings_.window_tokens};
  const double projections = 2 * tokens * hidden * (query + (settings_.value < 0 ? 1 : 2) * key);
  const double raw_keys = settings_.key_norm.present() || settings_.value_norm.present() ? (settings_.value < 0 ? 1 : 2) : 0;
  const double projected = rows * (hidden + (settings_.query_norm.present() ? 2 : 1) * query + (2 + raw_keys) * key);
  if (pass == Pass::kAttend) {
    cost.gemm_flops = projections;
    cost.attention_flops = attention * attention_passes(settings_.head_dim, false);
    cost.device_bytes = rows * (4 * hidden + 7 * query + 8 * key);
    cost.workspace_bytes = static_cast<int64_t>(projected + rows * query) + ops::attention_workspace_bytes(problem, false);
    return cost;
  }
  const double gate = settings_.output_gate ? query : 0;
  cost.gemm_flops = 3 * (projections + 2 * tokens * hidden * gate) + 4 * tokens * hidden * query;
  cost.attention_flops = 2.5 * attention * attention_passes(settings_.head_dim, true);
  cost.device_bytes = rows * (10 * hidden + 16 * query + 12 * gate + 20 * key) + 24 * tokens * hidden;
  // Gradients of the heads, O and its gradient made contiguous.
  cost.workspace_bytes = static_cast<int64_t>(projected + rows * (3 * query + 4 * gate + 2 * key)) + ops::attention_workspace_bytes(problem, true);
  return cost;
}

}  // namespace abi_1
}  // namespace oom
