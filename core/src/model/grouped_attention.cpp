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
ops::RotaryTable table_rows(const ops::RotaryTable& table, int64_t begin, int64_t rows) { return {table.cosine.narrow(0, begin, rows), table.sine.narrow(0, begin, rows)}; }

}  // namespace

GroupedAttention::GroupedAttention(const AttentionSettings& settings, int64_t row_chunk)
    : settings_(settings), frequencies_(ops::rotary_frequencies(settings.rotary)), row_chunk_(row_chunk) {}

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

/// Heads of one projection of the normed input, made a chunk of rows at a time.
struct GroupedAttention::Projection {
  at::Tensor weight;                  // [heads * row width, H]
  const NormSettings* norm = nullptr;
  at::Tensor raw;                     // [T, heads, row width], before the norm: of gradients, and where nothing changes it; otherwise undefined
  at::Tensor rstd;                    // FP32 [T * heads] of the norm; undefined without one
  at::Tensor heads;                   // [T, heads, D]: those of `raw`, or of their norm
};

struct GroupedAttention::Projected {
  Projection query, key, value;
  at::Tensor gate;    // [T, heads, D] beside the queries; undefined unless wanted
  at::Tensor normed;  // [T, H] where the rows are one chunk; undefined otherwise
};

int64_t GroupedAttention::query_rows() const { return settings_.output_gate ? 2 * settings_.head_dim : settings_.head_dim; }

at::Tensor GroupedAttention::gate_of(const at::Tensor& normed, const MixerCall& call) const {
  const int64_t dim = settings_.head_dim;
  const at::Tensor weight = call.weights[settings_.query].view({settings_.query_heads, 2 * dim, -1}).narrow(1, dim, dim).reshape({settings_.query_heads * dim, -1});
  return ops::linear_forward(normed, weight);
}

template <typename Body>
void GroupedAttention::for_each_chunk(int64_t rows, const Body& body) const {
  for (int64_t begin = 0; begin < rows; begin += row_chunk_) body(begin, std::min(row_chunk_, rows - begin));
}

at::Tensor GroupedAttention::normed_rows(const at::Tensor& x, const MixerCall& call) const {
  const NormSettings& norm = settings_.input_norm;
  return ops::rms_norm_forward(x, call.weights[norm.weight], norm.epsilon, norm.flavour).y;
}

GroupedAttention::Projection GroupedAttention::make_projection(const at::Tensor& x, const at::Tensor& weight, int64_t heads, const NormSettings& norm, bool keeps_raw) const {
  const int64_t tokens = x.size(0), dim = settings_.head_dim;
  Projection made{.weight = weight, .norm = &norm};
  if (keeps_raw || !norm.present()) made.raw = at::empty({tokens, heads, weight.size(0) / heads}, x.options());
  if (!norm.present()) {
    made.heads = made.raw.narrow(2, 0, dim);
  } else {
    made.heads = at::empty({tokens, heads, dim}, x.options());
    made.rstd = at::empty({tokens * heads}, x.options().dtype(at::kFloat));
  }
  return made;
}

void GroupedAttention::norm_heads(const Projection& projection, const at::Tensor& raw, int64_t begin, const MixerCall& call) const {
  const NormSettings& norm = *projection.norm;
  if (!norm.present()) return;
  const int64_t rows = raw.size(0), heads = raw.size(1);
  ops::rms_norm_forward_out(projection.heads.narrow(0, begin, rows), projection.rstd.narrow(0, begin * heads, rows * heads), raw.narrow(2, 0, settings_.head_dim), weight_of(norm, call.weights),
                            norm.epsilon, norm.flavour);
}

GroupedAttention::Projected GroupedAttention::project_heads(const at::Tensor& x, const Heads& heads, const MixerCall& call, bool for_backward) const {
  const int64_t dim = settings_.head_dim;
  const bool gates = settings_.output_gate && for_backward;
  const auto weight_rows = [&](int weight, int64_t first, int64_t count) { return call.weights[weight].narrow(0, first * dim, count * dim); };
  at::Tensor query_weight = call.weights[settings_.query].narrow(0, heads.first * query_rows(), heads.count * query_rows());
  if (settings_.output_gate && !gates) query_weight = query_weight.view({heads.count, 2 * dim, -1}).narrow(1, 0, dim).reshape({heads.count * dim, -1});
  Projected projected;
  projected.query = make_projection(x, query_weight, heads.count, settings_.query_norm, for_backward);
  projected.key = make_projection(x, weight_rows(settings_.key, heads.first_key, heads.key_count), heads.key_count, settings_.key_norm, for_backward);
  const bool own_values = settings_.value >= 0;
  const at::Tensor value_weight = own_values ? weight_rows(settings_.value, heads.first_key, heads.key_count) : projected.key.weight;
  projected.value = make_projection(x, value_weight, heads.key_count, settings_.value_norm, own_values && for_backward);
  if (!own_values) projected.value.raw = projected.key.raw;
  if (gates) projected.gate = projected.query.raw.narrow(2, dim, dim);
  const ops::RotaryTable table = ops::rotary_table(frequencies_, call.sequence.positions, x.scalar_type());
  for_each_chunk(x.size(0), [&](int64_t begin, int64_t rows) {
    const at::Tensor normed = normed_rows(x.narrow(0, begin, rows), call);
    if (for_backward && rows == x.size(0)) projected.normed = normed;
    const auto fill = [&](const Projection& projection, int64_t count) {
      const int64_t width = projection.weight.size(0);
      const at::Tensor raw = projection.raw.defined() ? projection.raw.narrow(0, begin, rows) : at::empty({rows, count, width / count}, x.options());
      ops::linear_forward_out(raw.view({rows, width}), normed, projection.weight);
      norm_heads(projection, raw, begin, call);
      return raw;
    };
    fill(projected.query, heads.count);
    const at::Tensor keys = fill(projected.key, heads.key_count);
    if (own_values) {
      fill(projected.value, heads.key_count);
    } else if (settings_.value_norm.present()) {
      norm_heads(projected.value, keys, begin, call);
    } else {
      projected.value.heads.narrow(0, begin, rows).copy_(keys);
    }
    const ops::RotaryTable own = table_rows(table, begin, rows);
    for (const at::Tensor& rotated : {projected.query.heads.narrow(0, begin, rows), projected.key.heads.narrow(0, begin, rows)}) ops::rotary_forward_out(rotated, rotated, own);
  });
  return projected;
}

void GroupedAttention::attend(const at::Tensor& x, const MixerCall& call, const Keep& results) const {
  const Heads heads(call.slice, heads_per_key());
  const int64_t dim = settings_.head_dim;
  const Projected projected = project_heads(x, heads, call, /*for_backward=*/false);
  const model::AttentionRows rows(settings_, call);
  const ops::AttentionForward attended =
      ops::attention_forward(rows.attended(projected.query.heads, heads.count), rows.attended(projected.key.heads, heads.key_count), rows.attended(projected.value.heads, heads.key_count), rows.options());
  at::Tensor to = results.output.narrow(1, heads.first * dim, heads.count * dim);
  to.copy_(attended.out.reshape({x.size(0), heads.count * dim}));
  results.log_sum_exp.narrow(1, heads.first, heads.count).copy_(rows.own_lse(attended.lse));
}

at::Tensor GroupedAttention::project(const at::Tensor& x, const at::Tensor& output, const MixerCall& call) const {
  at::Tensor attended = output;
  if (settings_.output_gate) attended = ops::sigmoid_gate_forward(output, gate_of(normed_rows(x, call), call));
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
  Projected projected = project_heads(x, heads, call, /*for_backward=*/true);

  // Wo holds a group's heads in columns; a sink is contiguous. A gate's gradient takes the gate's place.
  const at::Tensor output = results.output.narrow(1, first, width);
  at::Tensor dout = at::empty({tokens, width}, x.options());
  {
    const at::Tensor columns = at::empty({dprojected.size(1), width}, sinks[settings_.output].tensor.options()), weight = weights[settings_.output].narrow(1, first, width);
    for_each_chunk(tokens, [&](int64_t begin, int64_t rows) {
      const at::Tensor upper = dprojected.narrow(0, begin, rows), lower = dout.narrow(0, begin, rows);
      const at::Tensor attended = output.narrow(0, begin, rows), heads_of = attended.unflatten(1, {heads.count, dim});
      const at::Tensor gate = settings_.output_gate ? projected.gate.narrow(0, begin, rows) : at::Tensor();
      ops::linear_wgrad({columns, begin > 0}, upper, gate.defined() ? ops::sigmoid_gate_forward(heads_of, gate).view({rows, width}) : attended);
      ops::linear_dgrad_out(lower, upper, weight);
      if (gate.defined()) ops::sigmoid_gate_backward_out(lower.view({rows, heads.count, dim}), gate, lower.view({rows, heads.count, dim}), heads_of, gate);
    });
    sinks[settings_.output].tensor.narrow(1, first, width).add_(columns);
  }
  const model::AttentionRows rows(settings_, call);
  ops::AttentionBackward gradient = ops::attention_backward(rows.attended(dout, heads.count), rows.attended(projected.query.heads, heads.count), rows.attended(projected.key.heads, heads.key_count),
                                                            rows.attended(projected.value.heads, heads.key_count), rows.attended(output, heads.count),
                                                            rows.attended_lse(results.log_sum_exp.narrow(1, heads.first, heads.count)), rows.options());
  dout.reset();
  for (Projection* done : {&projected.query, &projected.key, &projected.value}) done->heads.reset();
  const at::Tensor dquery = gradient.dq.contiguous().view({tokens, heads.count, dim});
  at::Tensor dkey = gradient.dk.contiguous().view({tokens, heads.key_count, dim}), dvalue = gradient.dv.contiguous().view({tokens, heads.key_count, dim});
  gradient = {};
  if (!heads.first_of_key || !heads.last_of_key) {
    if (heads.first_of_key) {
      key_sums.tensors = {dkey.to(at::kFloat), dvalue.to(at::kFloat)};
    } else {
      key_sums.tensors[0].add_(dkey);
      key_sums.tensors[1].add_(dvalue);
    }
    dkey.reset();
    dvalue.reset();
    if (heads.last_of_key) {
      dkey = key_sums.tensors[0].to(x.scalar_type());
      dvalue = key_sums.tensors[1].to(x.scalar_type());
      key_sums.tensors.clear();
    }
  }

  const ops::RotaryTable table = ops::rotary_table(frequencies_, call.sequence.positions, x.scalar_type());
  for_each_chunk(tokens, [&](int64_t begin, int64_t rows) {
    const at::Tensor normed = projected.normed.defined() ? projected.normed : normed_rows(x.narrow(0, begin, rows), call);
    const ops::RotaryTable own = table_rows(table, begin, rows);
    // Back through a head norm, in place.
    const auto head_gradient = [&](const at::Tensor& of_heads, const Projection& projection, bool rotates) {
      const at::Tensor of_rows = of_heads.narrow(0, begin, rows);
      const int64_t count = of_rows.size(1);
      if (rotates) ops::rotary_backward_out(of_rows, of_rows, own);
      if (const NormSettings& norm = *projection.norm; norm.present()) {
        ops::rms_norm_backward_out({of_rows, {}}, of_rows, projection.raw.narrow(0, begin, rows).narrow(2, 0, dim), weight_of(norm, weights), projection.rstd.narrow(0, begin * count, rows * count),
                                   norm.flavour, sink_of(norm, sinks));
      }
      return of_rows;
    };
    const auto add_product = [&](const at::Tensor& of_heads, int weight, int64_t head) {
      const int64_t count = of_heads.size(1);
      const at::Tensor of_product = of_heads.view({rows, -1});
      ops::linear_wgrad(rows_of_sink(weight, head, count), of_product, normed);
      ops::linear_dgrad_out(dnormed.narrow(0, begin, rows), of_product, weights[weight].narrow(0, head * rows_of(weight), count * rows_of(weight)), /*accumulate=*/true);
    };
    at::Tensor of_query = head_gradient(dquery, projected.query, /*rotates=*/true);
    if (settings_.output_gate) {  // beside that of the gate, in the place of what Wq gave
      const at::Tensor product = projected.query.raw.narrow(0, begin, rows);
      product.narrow(2, 0, dim).copy_(of_query);
      of_query = product;
    }
    add_product(of_query, settings_.query, heads.first);
    if (!heads.last_of_key) return;
    const at::Tensor of_key = head_gradient(dkey, projected.key, /*rotates=*/true), of_value = head_gradient(dvalue, projected.value, /*rotates=*/false);
    if (settings_.value < 0) {
      ops::add_scaled_out(of_key, of_key, of_value);
    } else {
      add_product(of_value, settings_.value, heads.first_key);
    }
    add_product(of_key, settings_.key, heads.first_key);
  });
}

at::Tensor GroupedAttention::enter_backward(const at::Tensor& dnormed, const at::Tensor& dy, const at::Tensor& x, const MixerCall& call) const {
  const NormSettings& norm = settings_.input_norm;
  const at::Tensor rstd = ops::rms_norm_forward(x, call.weights[norm.weight], norm.epsilon, norm.flavour).rstd;
  return ops::rms_norm_backward(dnormed.to(x.scalar_type()), x, call.weights[norm.weight], rstd, norm.flavour, (*call.gradients)[norm.weight], {}, dy).dx;
}

SublayerCost GroupedAttention::cost(Pass pass, int64_t batch, int64_t length, int64_t element_bytes, const Slice& slice) const {
  const int64_t own = slice.axis == Axis::kSequence ? slice.end - slice.begin : length;
  const double tokens = static_cast<double>(batch * own), element = static_cast<double>(element_bytes), rows = tokens * element;
  const double hidden = static_cast<double>(settings_.hidden), dim = static_cast<double>(settings_.head_dim);
  SublayerCost cost;
  if (pass == Pass::kProject || pass == Pass::kEnterBackward) {
    const double width = static_cast<double>(settings_.query_heads) * dim;
    const double gate = settings_.output_gate ? width : 0;
    if (pass == Pass::kProject) cost.gemm_flops = 2 * tokens * hidden * (width + gate);
    cost.device_bytes = pass == Pass::kProject ? rows * (3 * hidden + width + 4 * gate) : tokens * (4 * hidden + 8 * hidden * element);
    const double projecting = hidden + (gate > 0 ? hidden + 2 * gate : 0) + (settings_.output_norm.present() ? hidden : 0);
    cost.workspace_bytes = static_cast<int64_t>(std::min(tokens, static_cast<double>(row_chunk_)) * element * (pass == Pass::kProject ? projecting : 3 * hidden));
    return cost;
  }
  const Heads heads(slice, heads_per_key());
  const double query = static_cast<double>(heads.count) * dim, key = static_cast<double>(heads.key_count) * dim;
  const double span = settings_.window_tokens > 0 ? std::min<double>(static_cast<double>(settings_.window_tokens), static_cast<double>(length) / 2) : static_cast<double>(length) / 2;
  const double attention = 4 * tokens * span * query;
  const ops::AttentionProblem problem{.device = c10::DeviceType::CUDA, .dtype = element_bytes == 4 ? at::kFloat : at::kBFloat16, .batch = batch, .tokens = length, .query_heads = heads.count,
                                      .kv_heads = heads.key_count, .head_dim = settings_.head_dim, .window_tokens = settings_.window_tokens, .deterministic = ops::deterministic_attention()};
  const double projections = 2 * tokens * hidden * (query + (settings_.value < 0 ? 1 : 2) * key);
  const double chunk = std::min(tokens, static_cast<double>(row_chunk_)) * element, table = rows * 2 * static_cast<double>(frequencies_.inverse.numel());
  if (pass == Pass::kAttend) {
    cost.gemm_flops = projections;
    cost.attention_flops = attention * attention_passes(problem, false);
    cost.device_bytes = rows * (4 * hidden + 7 * query + 8 * key);
    // Queries, keys and values, and Wq's rows of queries that lie between those of gates; beside them a chunk's normed rows and products, then O and what attending takes.
    const double gathered = settings_.output_gate ? element * hidden * query : 0, attending = rows * query + static_cast<double>(ops::attention_workspace_bytes(problem, false));
    cost.workspace_bytes = static_cast<int64_t>(gathered + rows * (query + 2 * key) + std::max(chunk * (hidden + std::max(query, 2 * key)) + table, attending));
    return cost;
  }
  const double gate = settings_.output_gate ? query : 0;
  cost.gemm_flops = 3 * (projections + 2 * tokens * hidden * gate) + 4 * tokens * hidden * query;
  cost.attention_flops = 2.5 * attention * attention_passes(problem, true);
  const bool shared = settings_.value < 0, one_chunk = batch * length <= row_chunk_;
  cost.device_bytes = rows * ((one_chunk ? 10 : 12) * hidden + 16 * query + 12 * gate + 20 * key) + 24 * tokens * hidden;
  // What the projections gave and, where a norm follows, the heads; the gradient of O. Beside them O made contiguous, gradients of the heads and what attending
  // takes, or a chunk's normed rows and gated O. Of rows that are one chunk the normed ones stay.
  const double raw_keys = settings_.key_norm.present() || shared ? 1 : 0, raw_values = settings_.value_norm.present() && !shared ? 1 : 0;
  const double held = rows * ((settings_.query_norm.present() ? 2 : 1) * query + gate + (2 + raw_keys + raw_values) * key + query) + (one_chunk ? chunk * hidden : 0);
  const double attending = rows * (2 * query + 2 * key) + static_cast<double>(ops::attention_workspace_bytes(problem, true));
  const double walking = chunk * ((one_chunk ? 0 : hidden) + gate) + table;
  cost.workspace_bytes = static_cast<int64_t>(held + std::max(attending, walking));
  return cost;
}

}  // namespace abi_1
}  // namespace oom
