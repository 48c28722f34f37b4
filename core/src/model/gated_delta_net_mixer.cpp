#include <ATen/ops/empty.h>

#include "model/sequence_rows.h"
#include "oom/gated_delta_net.h"
#include "oom/ops/causal_conv.h"
#include "oom/ops/delta_rule_gates.h"
#include "oom/ops/gated_delta_rule.h"
#include "oom/ops/l2_norm.h"
#include "oom/ops/linear.h"
#include "oom/ops/rms_norm.h"
#include "oom/ops/scale.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace oom {
inline namespace abi_1 {
namespace {

using model::SequenceRows;

// T tokens; C channels = 2 key width + value width; Hk, Hv key and value heads of Dk, Dv.
class GatedDeltaNetMixer final : public Mixer {
 public:
  explicit GatedDeltaNetMixer(const GatedDeltaNetSettings& settings) : settings_(settings) {}

  std::vector<CutAxis> axes() const override {
    const int64_t state = settings_.value_heads * settings_.key_dim * settings_.value_dim, context = (settings_.taps - 1) * channels();
    return {{.axis = Axis::kWhole},
            {.axis = Axis::kBatch, .extent = 0, .multiple = 1},
            {.axis = Axis::kSequence, .extent = 0, .multiple = ops::kDeltaRuleTile, .carried_bytes = 4 * (state + context), .reversed_backward = true}};
  }

  at::Tensor forward(const at::Tensor& x, const MixerCall& call, Keep*) const override {
    Pass pass(x, call);
    return run(pass, nullptr);
  }

  at::Tensor replay(const at::Tensor& x, const MixerCall& call, const Keep*, Saved& saved) const override {
    Pass pass(x, call);
    return run(pass, &saved);
  }

  at::Tensor backward(const at::Tensor& dy, const at::Tensor& x, Saved& saved, const MixerCall& call) const override {
    std::vector<at::Tensor> held = std::move(saved.tensors);
    const LayerWeights& weights = call.weights;
    const LayerGradients& sinks = *call.gradients;
    const SequenceRows rows(call.sequence, call.slice);
    const int64_t tokens = x.size(0);

    // Back through Wo, and the norm and gate before it.
    ops::NormGradient behind;
    {
      const NormSettings& norm = settings_.output_norm;
      const at::Tensor attended = values(std::exchange(held[kOut], {})), gate = values(std::exchange(held[kZ], {}));
      at::Tensor normed_out = at::empty(attended.sizes(), attended.options());
      ops::rms_norm_forward_out(normed_out, held[kOutRstd], attended, weights[norm.weight], norm.epsilon, ops::NormFlavour::kGated, gate);
      ops::linear_wgrad(sinks[settings_.output], dy, flat(normed_out));
      normed_out.reset();
      behind = ops::rms_norm_backward(values(ops::linear_dgrad(dy, weights[settings_.output])), attended, weights[norm.weight], held[kOutRstd], ops::NormFlavour::kGated,
                                      sinks[norm.weight], gate);
    }

    // The rule. Its gradients of values go straight to the convolution's; those of queries and keys pass their norms first.
    const at::Tensor& conv = held[kConv];
    const ops::DeltaRuleInputs inputs = rule_inputs(held[kQuery], held[kKey], conv, held[kLogDecay], held[kBeta]);
    const at::Tensor d_conv = at::empty(conv.sizes(), conv.options());
    at::Tensor d_query = at::empty(held[kQuery].sizes(), conv.options()), d_key = at::empty(held[kKey].sizes(), conv.options());
    const at::Tensor d_log_decay = at::empty(held[kBeta].sizes(), held[kBeta].options()), d_beta = at::empty(held[kBeta].sizes(), held[kBeta].options());
    const bool carries = call.state != nullptr;
    const std::vector<at::Tensor> none(2);
    const std::vector<at::Tensor>& handed_back = carries && !call.state->tensors.empty() ? call.state->tensors : none;
    const at::Tensor d_entry = carries ? at::empty({rows.batch(), settings_.value_heads, settings_.key_dim, settings_.value_dim}, d_beta.options()) : at::Tensor();
    std::vector<at::Tensor> rule_saved(held.begin() + kRuleSaved, held.end());
    held.resize(kRuleSaved);
    ops::gated_delta_rule_backward({d_query, d_key, value_part(d_conv), d_log_decay, d_beta, d_entry}, behind.dx, handed_back[0], inputs, rows.segments(),
                                   held[kEntryState], std::move(rule_saved));
    behind.dx.reset();
    ops::l2_norm_backward_out(query_part(d_conv), d_query, query_part(conv), held[kQueryRstd]);
    ops::l2_norm_backward_out(key_part(d_conv), d_key, key_part(conv), held[kKeyRstd]);
    for (at::Tensor* done : {&d_query, &d_key, &held[kQuery], &held[kKey], &held[kConv]}) done->reset();

    const at::Tensor d_mixed = at::empty(d_conv.sizes(), d_conv.options());
    const at::Tensor d_context = ops::causal_conv_backward(d_mixed, sinks[settings_.conv], d_conv, held[kMixed], weights[settings_.conv], rows.segments(), held[kEntryContext],
                                                           handed_back[1], carries);
    if (carries) call.state->tensors = {rows.continued(d_entry), rows.continued(d_context)};
    const ops::DeltaRuleGateGradients gates = ops::delta_rule_gates_backward(d_log_decay, d_beta, held[kA], held[kB], weights[settings_.a_log], weights[settings_.dt_bias],
                                                                             sinks[settings_.a_log], sinks[settings_.dt_bias]);

    at::Tensor dnormed = ops::linear_dgrad(d_mixed, weights[settings_.qkv]);
    ops::linear_wgrad(sinks[settings_.qkv], d_mixed, held[kNormed]);
    for (const auto& [gradient, weight] : {std::pair(behind.dgate.view({tokens, value_width()}), settings_.z), {gates.da, settings_.a}, {gates.db, settings_.b}}) {
      ops::linear_dgrad_out(dnormed, gradient, weights[weight], /*accumulate=*/true);
      ops::linear_wgrad(sinks[weight], gradient, held[kNormed]);
    }
    const NormSettings& input = settings_.input_norm;
    return ops::rms_norm_backward(dnormed, x, weights[input.weight], held[kRstd], input.flavour, sinks[input.weight], {}, dy).dx;
  }

  bool isolates_documents() const override { return true; }

  SublayerCost cost(oom::Pass pass, int64_t batch, int64_t length, int64_t element_bytes, const Slice& slice) const override {
    const int64_t rows_of_sequence = slice.axis == Axis::kSequence ? slice.end - slice.begin : length;
    const int64_t tokens = batch * rows_of_sequence, tiles = batch * ((rows_of_sequence + ops::kDeltaRuleTile - 1) / ops::kDeltaRuleTile);
    const double rows = static_cast<double>(tokens), element = static_cast<double>(element_bytes), hidden = static_cast<double>(settings_.hidden);
    const double all = static_cast<double>(channels()), value = static_cast<double>(value_width()), key = static_cast<double>(key_width());
    const double heads = static_cast<double>(settings_.value_heads), tile = static_cast<double>(ops::kDeltaRuleTile);
    const double key_dim = static_cast<double>(settings_.key_dim), value_dim = static_cast<double>(settings_.value_dim);
    const ops::DeltaRuleProblem problem{.device = c10::DeviceType::CUDA, .dtype = element_bytes == 4 ? at::kFloat : at::kBFloat16, .tokens = tokens, .segments = batch,
                                        .key_heads = settings_.key_heads, .value_heads = settings_.value_heads, .key_dim = settings_.key_dim, .value_dim = settings_.value_dim};
    SublayerCost cost;
    const double gemm = 2 * rows * hidden * (all + 2 * value + 2 * heads);
    // Of a tile: K S, Q S, K^T Vn and M W, P Vn, K K^T, Q K^T.
    const double rule = 2 * static_cast<double>(tiles) * heads * tile * (3 * key_dim * value_dim + tile * (2 * value_dim + 2 * key_dim));
    cost.saved_bytes = static_cast<int64_t>(rows * (element * (hidden + 2 * all + 2 * key + 2 * value + 2 * heads) + 4 * (1 + 2 * static_cast<double>(settings_.key_heads) + 3 * heads))) +
                       ops::gated_delta_rule_saved_bytes(problem);
    const bool backward = pass == oom::Pass::kBackward;
    cost.gemm_flops = backward ? 2 * gemm : gemm;
    cost.other_flops = backward ? 3 * rule : rule;
    cost.device_bytes = rows * element * (backward ? 8 * hidden + 9 * all + 9 * value + 8 * key : 5 * hidden + 5 * all + 6 * value + 4 * key);
    // Beside what is saved, and the result, which comes last: while the rule runs, and in the norm behind it (or in front of it). Backward frees what the norm
    // saved before the rule runs.
    const double small = 2 * heads * element + 4 * (1 + 3 * heads + 2 * static_cast<double>(settings_.key_heads));
    const double rule_bytes = static_cast<double>(ops::gated_delta_rule_workspace_bytes(problem, backward));
    const auto live = [&](double in_rule, double in_norm) { return static_cast<int64_t>(std::max(rows * (element * in_rule + small) + rule_bytes, rows * (element * in_norm + small))); };
    cost.workspace_bytes = backward                      ? live(all + 2 * key - hidden, 3 * value - hidden)
                           : pass == oom::Pass::kForward ? live(all + 2 * key + 2 * value - hidden, std::max({all + value, 2 * all + value - hidden, all + 2 * key + 3 * value - hidden}))
                                                         : live(0, value);
    return cost;
  }

 private:
  enum Held { kNormed, kRstd, kMixed, kZ, kA, kB, kConv, kQuery, kQueryRstd, kKey, kKeyRstd, kLogDecay, kBeta, kOut, kOutRstd, kEntryState, kEntryContext, kRuleSaved };

  /// The operands of one forward or replay.
  struct Pass {
    Pass(const at::Tensor& input, const MixerCall& mixer_call) : x(input), call(mixer_call), rows(mixer_call.sequence, mixer_call.slice) {
      OOM_CHECK_EQ(x.size(0), rows.rows(), "rows of x and of the slice");
      if (call.state == nullptr || call.state->tensors.empty()) return;
      OOM_CHECK_EQ(call.state->tensors.size(), size_t{2}, "tensors of a Gated DeltaNet's state");
      state = rows.continued(call.state->tensors[0]);
      context = rows.continued(call.state->tensors[1]);
    }
    const at::Tensor& x;
    const MixerCall& call;
    SequenceRows rows;
    at::Tensor state, context;  // at the first row; undefined: zeros
  };

  int64_t key_width() const { return settings_.key_heads * settings_.key_dim; }
  int64_t value_width() const { return settings_.value_heads * settings_.value_dim; }
  int64_t channels() const { return 2 * key_width() + value_width(); }

  at::Tensor heads(const at::Tensor& channels_TC, int64_t first, int64_t count, int64_t dim) const {
    return channels_TC.narrow(1, first, count * dim).unflatten(1, {count, dim});
  }
  at::Tensor query_part(const at::Tensor& all) const { return heads(all, 0, settings_.key_heads, settings_.key_dim); }
  at::Tensor key_part(const at::Tensor& all) const { return heads(all, key_width(), settings_.key_heads, settings_.key_dim); }
  at::Tensor value_part(const at::Tensor& all) const { return heads(all, 2 * key_width(), settings_.value_heads, settings_.value_dim); }
  at::Tensor values(const at::Tensor& rows) const { return rows.view({rows.size(0), settings_.value_heads, settings_.value_dim}); }
  at::Tensor flat(const at::Tensor& values_THD) const { return values_THD.view({values_THD.size(0), value_width()}); }

  ops::DeltaRuleInputs rule_inputs(const at::Tensor& query, const at::Tensor& key, const at::Tensor& conv, const at::Tensor& log_decay, const at::Tensor& beta) const {
    return {query, key, value_part(conv), log_decay, beta, 1.0 / std::sqrt(static_cast<double>(settings_.key_dim))};
  }

  at::Tensor run(Pass& pass, Saved* saved) const {
    const LayerWeights& weights = pass.call.weights;
    const NormSettings &input = settings_.input_norm, &norm = settings_.output_norm;
    const ops::Segments segments = pass.rows.segments();
    ops::NormOutput normed = ops::rms_norm_forward(pass.x, weights[input.weight], input.epsilon, input.flavour);
    at::Tensor mixed = ops::linear_forward(normed.y, weights[settings_.qkv]);
    const at::Tensor z = ops::linear_forward(normed.y, weights[settings_.z]);
    const at::Tensor a = ops::linear_forward(normed.y, weights[settings_.a]), b = ops::linear_forward(normed.y, weights[settings_.b]);
    if (saved == nullptr) normed.y.reset();
    at::Tensor conv = ops::causal_conv_forward(mixed, weights[settings_.conv], segments, pass.context);
    const at::Tensor next_context = pass.call.state != nullptr ? ops::causal_conv_context(mixed, settings_.taps, segments, pass.context) : at::Tensor();
    if (saved == nullptr) mixed.reset();
    ops::L2Output query = ops::l2_norm_forward(query_part(conv), settings_.l2_epsilon), key = ops::l2_norm_forward(key_part(conv), settings_.l2_epsilon);
    const ops::DeltaRuleGates gates = ops::delta_rule_gates_forward(a, b, weights[settings_.a_log], weights[settings_.dt_bias]);
    ops::DeltaRuleForward rule = ops::gated_delta_rule_forward(rule_inputs(query.y, key.y, conv, gates.log_decay, gates.beta), segments, pass.state,
                                                               {.final_state = pass.call.state != nullptr, .saved = saved != nullptr});
    if (pass.call.state != nullptr) pass.call.state->tensors = {rule.final_state, next_context};
    ops::NormOutput out = ops::rms_norm_forward(rule.out, weights[norm.weight], norm.epsilon, ops::NormFlavour::kGated, values(z));
    if (saved != nullptr) {
      saved->tensors = {normed.y, normed.rstd, mixed, z, a, b, conv, query.y, query.rstd, key.y, key.rstd, gates.log_decay, gates.beta, flat(rule.out), out.rstd, pass.state, pass.context};
      saved->tensors.insert(saved->tensors.end(), rule.saved.begin(), rule.saved.end());
    } else {
      for (at::Tensor* done : {&conv, &query.y, &key.y, &rule.out}) done->reset();
    }
    if (!pass.call.wants_output) return {};
    at::Tensor y = ops::linear_forward(flat(out.y), weights[settings_.output]);
    ops::add_scaled_out(y, pass.x, y);
    return y;
  }

  GatedDeltaNetSettings settings_;
};

}  // namespace

std::unique_ptr<Mixer> make_gated_delta_net(const GatedDeltaNetSettings& settings) { return std::make_unique<GatedDeltaNetMixer>(settings); }

}  // namespace abi_1
}  // namespace oom
