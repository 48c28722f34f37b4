#include <ATen/ops/empty.h>

#include "model/attention_rows.h"
#include "model/grouped_attention.h"
#include "oom/ops/gate.h"
#include "oom/ops/linear.h"
#include "oom/ops/rms_norm.h"
#include "oom/ops/scale.h"

namespace oom {
inline namespace abi_1 {
namespace {

using model::AttentionRows;

// T tokens = B sequences of S, or of a slice's rows; Q = query heads x head dim, K = key/value heads x head dim. Along kSequence (only with a window), the
// state is the rotated keys and the values that the next rows' windows reach back to, and its gradient is FP32.
class AttentionMixer final : public Mixer {
 public:
  explicit AttentionMixer(const AttentionSettings& settings) : settings_(settings), frequencies_(ops::rotary_frequencies(settings.rotary)), parts_(settings) {
    OOM_CHECK(settings.value >= 0 || settings.key_norm.present(), "values share the key's projection only where a norm keeps the two apart");
  }

  std::vector<CutAxis> axes() const override {
    std::vector<CutAxis> axes{{.axis = Axis::kWhole},
                              {.axis = Axis::kBatch, .extent = 0, .multiple = 1},
                              {.axis = Axis::kHeadGroup, .extent = settings_.query_heads, .multiple = 1}};
    if (settings_.window_tokens > 0) {
      const int64_t context = (settings_.window_tokens - 1) * settings_.kv_heads * settings_.head_dim;
      axes.push_back({.axis = Axis::kSequence, .extent = 0, .multiple = 1, .carried_bytes = 4 * 2 * context, .reversed_backward = true});
    }
    return axes;
  }

  KeepShape keep_shape() const override { return {settings_.query_heads, settings_.head_dim}; }
  const AttentionParts* parts() const override { return &parts_; }

  at::Tensor forward(const at::Tensor& x, const MixerCall& call, Keep* keep) const override {
    const AttentionRows rows(settings_, call);
    const Projected projected = project(x, call, rows);
    const ops::AttentionForward attended = ops::attention_forward(rows.attended(projected.query, settings_.query_heads), projected.keys, projected.values, rows.options());
    const at::Tensor heads = rows.own(attended.out);
    if (keep) {
      keep->output.copy_(heads.reshape(keep->output.sizes()));
      keep->log_sum_exp.copy_(rows.own_lse(attended.lse));
    }
    return output(x, heads, projected.gate, call, nullptr);
  }

  at::Tensor replay(const at::Tensor& x, const MixerCall& call, const Keep* keep, Saved& saved) const override {
    const AttentionRows rows(settings_, call);
    const Projected projected = project(x, call, rows);
    const at::Tensor query = rows.attended(projected.query, settings_.query_heads);
    const ops::AttentionForward attended = keep ? ops::AttentionForward{rows.attended(keep->output, settings_.query_heads), rows.attended_lse(keep->log_sum_exp)}
                                                : ops::attention_forward(query, projected.keys, projected.values, rows.options());
    saved.tensors = {projected.normed, projected.rstd, projected.query_raw, projected.query_rstd, projected.key_raw, projected.key_rstd, projected.value_raw, projected.value_rstd,
                     query,            projected.keys, projected.values,    attended.out,         attended.lse,      projected.gate};
    // The backward of a norm on the output needs the output.
    return call.wants_output || settings_.output_norm.present() ? output(x, rows.own(attended.out), projected.gate, call, &saved) : at::Tensor();
  }

  at::Tensor backward(const at::Tensor& dy, const at::Tensor& x, Saved& saved, const MixerCall& call) const override {
    enum { kNormed, kRstd, kQueryRaw, kQueryRstd, kKeyRaw, kKeyRstd, kValueRaw, kValueRstd, kQuery, kKey, kValue, kOut, kLse, kGate, kProduct, kProductRstd };
    std::vector<at::Tensor> held = std::move(saved.tensors);
    const LayerWeights& weights = call.weights;
    const LayerGradients& sinks = *call.gradients;
    const AttentionRows rows(settings_, call);
    const int64_t tokens = x.size(0);
    at::Tensor dproduct = dy;
    if (const NormSettings& norm = settings_.output_norm; norm.present()) {
      dproduct = ops::rms_norm_backward(dy, held[kProduct], weight_of(norm, weights), held[kProductRstd], norm.flavour, sink_of(norm, sinks)).dx;
      held[kProduct].reset();
    }
    at::Tensor dout = ops::linear_dgrad(dproduct, weights[settings_.output]);
    at::Tensor dprojection;  // of Wq's product, where a gate lies beside each head's query
    {
      const at::Tensor dheads = by_head(dout, settings_.query_heads), heads = rows.own(held[kOut]);
      ops::linear_wgrad(sinks[settings_.output], dproduct, gated(heads, held[kGate]).view(dout.sizes()));
      dproduct.reset();
      if (settings_.output_gate) {
        dprojection = at::empty({tokens, settings_.query_heads, 2 * settings_.head_dim}, x.options());
        ops::sigmoid_gate_backward_out(dheads, gate_part(dprojection), dheads, heads, held[kGate]);
        held[kGate].reset();
      }
    }
    ops::AttentionBackward gradient = ops::attention_backward(rows.attended(dout, settings_.query_heads), held[kQuery], held[kKey], held[kValue], held[kOut], held[kLse], rows.options());
    dout.reset();
    for (const int done : {kQuery, kKey, kValue, kOut, kLse}) held[done].reset();
    const ops::RotaryTable table = ops::rotary_table(frequencies_, rows.positions(), x.scalar_type());
    at::Tensor dquery = head_gradient(rows.own(gradient.dq.contiguous()), table, settings_.query_norm, held[kQueryRaw], held[kQueryRstd], call);
    gradient.dq.reset();
    if (settings_.output_gate) {
      query_part(dprojection).copy_(by_head(dquery, settings_.query_heads));
      dquery = dprojection.view({tokens, -1});
    }
    const std::vector<at::Tensor> none(2);
    const std::vector<at::Tensor> handed_back = call.state != nullptr && !call.state->tensors.empty() ? call.state->tensors : none;
    std::vector<at::Tensor> to_context(2);
    at::Tensor dkey = head_gradient(rows.own_gradient(gradient.dk, handed_back[0], to_context[0]), table, settings_.key_norm, held[kKeyRaw], held[kKeyRstd], call);
    gradient.dk.reset();
    at::Tensor dvalue = rows.own_gradient(gradient.dv, handed_back[1], to_context[1]);
    gradient.dv.reset();
    if (call.state != nullptr) call.state->tensors = std::move(to_context);
    if (const NormSettings& norm = settings_.value_norm; norm.present()) {
      dvalue = ops::rms_norm_backward(dvalue, held[kValueRaw], weight_of(norm, weights), held[kValueRstd], norm.flavour, sink_of(norm, sinks)).dx;
    }
    dvalue = dvalue.view({tokens, settings_.kv_heads * settings_.head_dim});
    const at::Tensor& normed = held[kNormed];
    if (settings_.value < 0) {
      ops::add_scaled_out(dkey, dkey, dvalue);
    } else {
      ops::linear_wgrad(sinks[settings_.value], dvalue, normed);
    }
    ops::linear_wgrad(sinks[settings_.query], dquery, normed);
    ops::linear_wgrad(sinks[settings_.key], dkey, normed);
    at::Tensor dnormed = ops::linear_dgrad(dquery, weights[settings_.query]);
    ops::linear_dgrad_out(dnormed, dkey, weights[settings_.key], /*accumulate=*/true);
    if (settings_.value >= 0) ops::linear_dgrad_out(dnormed, dvalue, weights[settings_.value], /*accumulate=*/true);
    return ops::rms_norm_backward(dnormed, x, weights[settings_.input_norm.weight], held[kRstd], settings_.input_norm.flavour, sinks[settings_.input_norm.weight], {}, dy).dx;
  }

  bool isolates_documents() const override { return true; }

  SublayerCost cost(Pass pass, int64_t batch, int64_t length, int64_t element_bytes, const Slice& slice) const override {
    if (pass >= Pass::kAttend) return parts_.cost(pass, batch, length, element_bytes, slice);
    // Rows of each sequence, and those that attention runs over: with its context when it is cut along the sequence.
    const int64_t own = slice.axis == Axis::kSequence ? slice.end - slice.begin : length;
    const int64_t reached = slice.axis == Axis::kSequence ? own + std::min(settings_.window_tokens - 1, slice.begin) : length;
    const double tokens = static_cast<double>(batch * reached);
    const double query = static_cast<double>(settings_.query_heads * settings_.head_dim), key = static_cast<double>(settings_.kv_heads * settings_.head_dim);
    const double hidden = static_cast<double>(settings_.hidden), element = static_cast<double>(element_bytes);
    const double span = settings_.window_tokens > 0 ? std::min<double>(static_cast<double>(settings_.window_tokens), static_cast<double>(reached) / 2) : static_cast<double>(reached) / 2;
    SublayerCost cost;
    const double gate = settings_.output_gate ? query : 0;
    const double gemm = 2 * static_cast<double>(batch * own) * hidden * (2 * query + gate + (settings_.value < 0 ? 1 : 2) * key);
    const double attention = 4 * tokens * span * query;
    const ops::AttentionProblem problem{.device = c10::DeviceType::CUDA, .dtype = element_bytes == 4 ? at::kFloat : at::kBFloat16, .batch = batch, .tokens = reached,
                                        .query_heads = settings_.query_heads, .kv_heads = settings_.kv_heads, .head_dim = settings_.head_dim, .window_tokens = settings_.window_tokens,
                                        .deterministic = ops::deterministic_attention()};
    const double rows = tokens * element;
    // What the norms of heads read is saved beside what they return.
    const double raw = (settings_.query_norm.present() ? query : 0) + (settings_.key_norm.present() ? key : 0) + (settings_.value_norm.present() && settings_.value >= 0 ? key : 0);
    const double product = settings_.output_norm.present() ? hidden : 0;
    cost.saved_bytes = static_cast<int64_t>(rows * (hidden + 2 * query + gate + 2 * key + raw + product) + tokens * 4 * static_cast<double>(2 + 2 * settings_.query_heads + 2 * settings_.kv_heads));
    cost.kept_bytes = static_cast<int64_t>(rows * query + tokens * 4 * static_cast<double>(settings_.query_heads));
    if (pass == Pass::kBackward) {
      cost.gemm_flops = 2 * gemm;
      cost.attention_flops = 2.5 * attention * attention_passes(problem, true);
      cost.device_bytes = rows * (8 * hidden + 14 * query + 8 * gate + 14 * key);
      cost.workspace_bytes = static_cast<int64_t>(rows * (2 * query + 3 * gate + 2 * key)) + ops::attention_workspace_bytes(problem, true);
      // The gradient of O behind its context, and sums with what is handed back.
      if (slice.axis == Axis::kSequence) cost.workspace_bytes += static_cast<int64_t>(rows * query + tokens * 8 * key);
    } else {
      cost.gemm_flops = gemm;
      cost.attention_flops = pass == Pass::kReplayKept ? 0 : attention * attention_passes(problem, false);
      cost.device_bytes = rows * (5 * hidden + 8 * query + 3 * gate + 10 * key);
      cost.workspace_bytes = static_cast<int64_t>(pass == Pass::kForward ? rows * (hidden + 3 * query + 2 * gate + 3 * key) : rows * (hidden + gate)) + ops::attention_workspace_bytes(problem, false);
    }
    return cost;
  }

 private:
  struct Projected {
    at::Tensor normed, rstd;                // [T, H], [T]
    at::Tensor query_raw, query_rstd;       // before the head norm; undefined without one
    at::Tensor key_raw, key_rstd;
    at::Tensor value_raw, value_rstd;       // value_raw may be key_raw
    at::Tensor query;                       // [T, heads, head dim], rotated
    at::Tensor keys, values;                // as attention reads them, those of the context in front; keys rotated
    at::Tensor gate;                        // [T, heads, head dim] inside Wq's product; undefined without one
  };

  at::Tensor query_part(const at::Tensor& projection) const { return projection.narrow(2, 0, settings_.head_dim); }
  at::Tensor gate_part(const at::Tensor& projection) const { return projection.narrow(2, settings_.head_dim, settings_.head_dim); }
  static at::Tensor gated(const at::Tensor& heads, const at::Tensor& gate) { return gate.defined() ? ops::sigmoid_gate_forward(heads, gate) : heads; }

  static at::Tensor weight_of(const NormSettings& norm, const LayerWeights& weights) { return norm.weight >= 0 ? weights[norm.weight] : at::Tensor(); }
  static GradientSink sink_of(const NormSettings& norm, const LayerGradients& sinks) { return norm.weight >= 0 ? sinks[norm.weight] : GradientSink{}; }

  at::Tensor by_head(const at::Tensor& projection, int64_t heads) const { return projection.view({projection.size(0), heads, settings_.head_dim}); }

  // One projection's heads [T, heads, head dim] after their norm; without one, the heads themselves.
  at::Tensor normed_heads(const at::Tensor& raw, const NormSettings& norm, const MixerCall& call, at::Tensor& kept_raw, at::Tensor& rstd) const {
    if (!norm.present()) return raw;
    kept_raw = raw;
    const ops::NormOutput normed = ops::rms_norm_forward(raw, weight_of(norm, call.weights), norm.epsilon, norm.flavour);
    rstd = normed.rstd;
    return normed.y;
  }

  // Back through rotation and norm: returns the projection's gradient [T, heads * head dim].
  at::Tensor head_gradient(const at::Tensor& gradient, const ops::RotaryTable& table, const NormSettings& norm, const at::Tensor& raw, const at::Tensor& rstd, const MixerCall& call) const {
    ops::rotary_backward_out(gradient, gradient, table);
    const at::Tensor flat = norm.present() ? ops::rms_norm_backward(gradient, raw, weight_of(norm, call.weights), rstd, norm.flavour, sink_of(norm, *call.gradients)).dx : gradient;
    return flat.view({flat.size(0), -1});
  }

  Projected project(const at::Tensor& x, const MixerCall& call, const AttentionRows& rows) const {
    const LayerWeights& weights = call.weights;
    Projected projected;
    const ops::NormOutput normed = ops::rms_norm_forward(x, weights[settings_.input_norm.weight], settings_.input_norm.epsilon, settings_.input_norm.flavour);
    projected.normed = normed.y;
    projected.rstd = normed.rstd;
    const ops::RotaryTable table = ops::rotary_table(frequencies_, rows.positions(), x.scalar_type());
    at::Tensor query = ops::linear_forward(normed.y, weights[settings_.query]).view({x.size(0), settings_.query_heads, -1});
    if (settings_.output_gate) {
      projected.gate = gate_part(query);
      query = query_part(query);
    }
    projected.query = normed_heads(query, settings_.query_norm, call, projected.query_raw, projected.query_rstd);
    ops::rotary_forward_out(projected.query, projected.query, table);
    const at::Tensor key = by_head(ops::linear_forward(normed.y, weights[settings_.key]), settings_.kv_heads);
    // Values that share the key's projection are read before it is rotated in place.
    const at::Tensor value = settings_.value < 0 ? key : by_head(ops::linear_forward(normed.y, weights[settings_.value]), settings_.kv_heads);
    const at::Tensor normed_value = normed_heads(value, settings_.value_norm, call, projected.value_raw, projected.value_rstd);
    const at::Tensor normed_key = normed_heads(key, settings_.key_norm, call, projected.key_raw, projected.key_rstd);
    ops::rotary_forward_out(normed_key, normed_key, table);
    const bool continues = call.state != nullptr && !call.state->tensors.empty();
    OOM_CHECK(continues || !call.state || call.slice.begin == 0, "a slice that begins at row ", call.slice.begin, " needs the keys and values before it");
    projected.keys = rows.attended(normed_key, settings_.kv_heads, continues ? call.state->tensors[0] : at::Tensor());
    projected.values = rows.attended(normed_value, settings_.kv_heads, continues ? call.state->tensors[1] : at::Tensor());
    if (call.state != nullptr) call.state->tensors = {rows.context_behind(projected.keys), rows.context_behind(projected.values)};
    return projected;
  }

  // Adds what its backward needs to `saved` when given.
  at::Tensor output(const at::Tensor& x, const at::Tensor& attended, const at::Tensor& gate, const MixerCall& call, Saved* saved) const {
    const at::Tensor heads = gated(attended, gate);
    at::Tensor y = ops::linear_forward(heads.view({x.size(0), settings_.query_heads * settings_.head_dim}), call.weights[settings_.output]);
    if (const NormSettings& norm = settings_.output_norm; norm.present()) {
      const ops::NormOutput normed = ops::rms_norm_forward(y, weight_of(norm, call.weights), norm.epsilon, norm.flavour);
      if (saved) saved->tensors.insert(saved->tensors.end(), {y, normed.rstd});
      y = normed.y;
    }
    ops::add_scaled_out(y, x, y);
    return y;
  }

  AttentionSettings settings_;
  ops::RotaryFrequencies frequencies_;
  GroupedAttention parts_;
};

}  // namespace

std::unique_ptr<Mixer> make_attention(const AttentionSettings& settings) { return std::make_unique<AttentionMixer>(settings); }

}  // namespace abi_1
}  // namespace oom
