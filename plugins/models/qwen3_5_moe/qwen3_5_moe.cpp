#include "qwen3_5_moe.h"

#include <oom/gated_delta_net.h>
#include <oom/models/description.h>
#include <oom/models/expert_files.h>

#include <cmath>

#include "geometry.h"

namespace oom::qwen3_5_moe {
namespace {

constexpr auto kFlavour = ops::NormFlavour::kZeroCentred;

// Positions of a layer's parameters, in the order in which describe lists them: a mixer's, then the feed-forward's from `first` on.
enum Linear { kLinearNorm, kDtBias, kALog, kConv, kStateNorm, kStateOutput, kQkv, kZ, kB, kA, kLinearParameters };
enum Full { kFullNorm, kQuery, kKey, kValue, kOutput, kQueryNorm, kKeyNorm, kFullParameters };
enum Sparse { kPostNorm, kRouter, kGateUp, kDown, kSharedGateProjection, kSharedUp, kSharedDown, kSharedGate };

bool carried(const std::string& tensor) { return tensor.starts_with("model.visual.") || tensor.starts_with("mtp."); }

}  // namespace

Qwen35Moe::Qwen35Moe(const HostServices&) {}

bool Qwen35Moe::accepts(const ModelConfig& config) const {
  const std::string type = config.string("model_type", "");
  return type == "qwen3_5_moe" || type == "qwen3_5_moe_text";
}

ModelDescription Qwen35Moe::describe(const ModelConfig& config, const ModelOptions& options) const {
  const Geometry geometry = read_geometry(config, options);
  models::DescriptionBuilder model("qwen3_5_moe", config, options, geometry.initial_std);
  model.description.routed = {geometry.experts, geometry.top_k, geometry.expert_width, "silu"};
  model.description.router_aux_loss = geometry.aux_coefficient;
  model.description.padding_token = geometry.padding_token;
  model.description.max_positions = geometry.max_positions;
  model.description.file_layouts = [nested = geometry.nested](const ParameterSpec& spec) { return models::layouts_under_prefixes(spec, nested); };
  model.description.carried_through = carried;

  const int64_t hidden = geometry.hidden, query = geometry.heads * geometry.head_dim, key = geometry.kv_heads * geometry.head_dim;
  const auto norm = [&](const std::string& name) { model.constant(name, {hidden}, ParameterRole::kNorm, 0.0); };
  model.embedding(geometry.vocabulary, hidden);
  for (const bool linear : geometry.linear) {
    model.begin_layer({linear ? "linear_attention" : "full_attention", "moe"});
    norm("input_layernorm.weight");
    if (linear) {
      constexpr auto kRole = ParameterRole::kRecurrence;
      model.constant("linear_attn.dt_bias", {geometry.value_heads}, kRole, 1.0);
      model.initialised("linear_attn.A_log", {geometry.value_heads}, kRole, {Initialisation::Kind::kUniformLog, 0.0});
      model.matrix("linear_attn.conv1d.weight", {geometry.channels(), 1, geometry.taps}, kRole);
      model.constant("linear_attn.norm.weight", {geometry.value_dim}, kRole, 1.0);
      model.matrix("linear_attn.out_proj.weight", {hidden, geometry.value_width()}, kRole);
      model.matrix("linear_attn.in_proj_qkv.weight", {geometry.channels(), hidden}, kRole);
      model.matrix("linear_attn.in_proj_z.weight", {geometry.value_width(), hidden}, kRole);
      model.matrix("linear_attn.in_proj_b.weight", {geometry.value_heads, hidden}, kRole);
      model.matrix("linear_attn.in_proj_a.weight", {geometry.value_heads, hidden}, kRole);
    } else {
      constexpr auto kRole = ParameterRole::kAttention;
      model.matrix("self_attn.q_proj.weight", {2 * query, hidden}, kRole);
      model.matrix("self_attn.k_proj.weight", {key, hidden}, kRole);
      model.matrix("self_attn.v_proj.weight", {key, hidden}, kRole);
      model.matrix("self_attn.o_proj.weight", {hidden, query}, kRole);
      model.constant("self_attn.q_norm.weight", {geometry.head_dim}, kRole, 0.0);
      model.constant("self_attn.k_norm.weight", {geometry.head_dim}, kRole, 0.0);
    }
    norm("post_attention_layernorm.weight");
    model.matrix("mlp.gate.weight", {geometry.experts, hidden}, ParameterRole::kRouter);
    model.matrix("mlp.experts.gate_up_proj", {geometry.experts, 2 * geometry.expert_width, hidden}, ParameterRole::kExpert);
    model.matrix("mlp.experts.down_proj", {geometry.experts, hidden, geometry.expert_width}, ParameterRole::kExpert);
    model.matrix("mlp.shared_expert.gate_proj.weight", {geometry.shared_width, hidden}, ParameterRole::kSharedExpert);
    model.matrix("mlp.shared_expert.up_proj.weight", {geometry.shared_width, hidden}, ParameterRole::kSharedExpert);
    model.matrix("mlp.shared_expert.down_proj.weight", {hidden, geometry.shared_width}, ParameterRole::kSharedExpert);
    model.matrix("mlp.shared_expert_gate.weight", {1, hidden}, ParameterRole::kSharedGate);
  }
  model.head(geometry.tied, 0.0);
  return std::move(model.description);
}

std::unique_ptr<Mixer> Qwen35Moe::mixer(const ModelDescription& description, int layer) const {
  const Geometry geometry = geometry_of(description);
  if (geometry.linear.at(static_cast<size_t>(layer))) {
    return make_gated_delta_net({.hidden = geometry.hidden,
                                 .key_heads = geometry.key_heads,
                                 .value_heads = geometry.value_heads,
                                 .key_dim = geometry.key_dim,
                                 .value_dim = geometry.value_dim,
                                 .taps = geometry.taps,
                                 .input_norm = {kLinearNorm, geometry.epsilon, kFlavour},
                                 .output_norm = {kStateNorm, geometry.epsilon, ops::NormFlavour::kGated},
                                 .qkv = kQkv,
                                 .z = kZ,
                                 .a = kA,
                                 .b = kB,
                                 .conv = kConv,
                                 .a_log = kALog,
                                 .dt_bias = kDtBias,
                                 .output = kStateOutput});
  }
  return make_attention({.hidden = geometry.hidden,
                         .query_heads = geometry.heads,
                         .kv_heads = geometry.kv_heads,
                         .head_dim = geometry.head_dim,
                         .scale = 1.0 / std::sqrt(static_cast<double>(geometry.head_dim)),
                         .rotary = geometry.rotary,
                         .input_norm = {kFullNorm, geometry.epsilon, kFlavour},
                         .query_norm = {kQueryNorm, geometry.epsilon, kFlavour},
                         .key_norm = {kKeyNorm, geometry.epsilon, kFlavour},
                         .query = kQuery,
                         .key = kKey,
                         .value = kValue,
                         .output = kOutput,
                         .output_gate = true});
}

std::unique_ptr<FeedForward> Qwen35Moe::feed_forward(const ModelDescription& description, int layer) const {
  const Geometry geometry = geometry_of(description);
  const int first = geometry.linear.at(static_cast<size_t>(layer)) ? static_cast<int>(kLinearParameters) : static_cast<int>(kFullParameters);
  return make_moe({.hidden = geometry.hidden,
                   .experts = geometry.experts,
                   .input_norm = {first + kPostNorm, geometry.epsilon, kFlavour},
                   .router = first + kRouter,
                   // The weights take the model's dtype, as in transformers 5.17.
                   .routing = {.top_k = geometry.top_k, .renormalise = true, .round_weights = true},
                   .shared = {.gate = first + kSharedGateProjection, .up = first + kSharedUp, .down = first + kSharedDown, .width = geometry.shared_width},
                   .shared_gate = first + kSharedGate});
}

ModelAdapter::FinalNorm Qwen35Moe::final_norm(const ModelDescription& description) const {
  return {geometry_of(description).epsilon, static_cast<int>(kFlavour)};
}

}  // namespace oom::qwen3_5_moe
