#include "qwen2_moe.h"

#include <oom/blocks.h>
#include <oom/models/config_values.h>
#include <oom/models/description.h>
#include <oom/models/expert_files.h>
#include <oom/models/rotary_config.h>

#include <cmath>
#include <utility>

namespace qwen2_moe {
namespace {

using oom::ParameterRole;

struct Geometry {
  int64_t hidden, vocabulary, layers, heads, kv_heads, head_dim, experts, top_k, width, shared_width, max_positions;
  double epsilon, initial_std, aux_coefficient;
  bool renormalise, tied;
  oom::ops::RotarySettings rotary;
};

// Every key is read, required to have the value that this code computes, or ignored because it changes nothing.
Geometry read(const oom::ModelConfig& config, const oom::ModelOptions& options) {
  Geometry geometry{};
  geometry.hidden = config.integer("hidden_size");
  geometry.vocabulary = config.integer("vocab_size");
  geometry.layers = config.integer("num_hidden_layers");
  geometry.heads = config.integer("num_attention_heads");
  geometry.kv_heads = config.integer("num_key_value_heads", geometry.heads);
  geometry.experts = config.integer("num_experts");
  geometry.top_k = config.integer("num_experts_per_tok");
  geometry.width = config.integer("moe_intermediate_size");
  geometry.shared_width = config.integer("shared_expert_intermediate_size");
  geometry.max_positions = config.integer("max_position_embeddings", 32768);
  geometry.epsilon = config.number("rms_norm_eps", 1e-6);
  geometry.initial_std = config.number("initializer_range", 0.02);
  geometry.renormalise = config.flag("norm_topk_prob", false);
  geometry.tied = config.flag("tie_word_embeddings", false);
  if (config.flag("output_router_logits", false)) geometry.aux_coefficient = config.number("router_aux_loss_coef", 0.001);
  oom::models::require_sizes(config, {{"hidden_size", geometry.hidden}, {"vocab_size", geometry.vocabulary}, {"num_attention_heads", geometry.heads},
                                      {"num_key_value_heads", geometry.kv_heads}, {"num_experts", geometry.experts}, {"num_experts_per_tok", geometry.top_k},
                                      {"moe_intermediate_size", geometry.width}, {"shared_expert_intermediate_size", geometry.shared_width}});
  oom::models::require_layer_count(config, geometry.layers);
  oom::models::require_positive(config, "rms_norm_eps", geometry.epsilon);
  oom::models::require_not_negative(config, "initializer_range", geometry.initial_std);
  oom::models::require_not_negative(config, "router_aux_loss_coef", geometry.aux_coefficient);
  geometry.head_dim = config.integer("head_dim", geometry.hidden / geometry.heads);
  oom::models::require_sizes(config, {{"head_dim", geometry.head_dim}, {"max_position_embeddings", geometry.max_positions}});
  geometry.rotary = oom::models::read_rotary(config, options, geometry.head_dim, geometry.max_positions, {});

  config.require("qkv_bias", "false", "biases in attention");
  config.require("hidden_act", "\"silu\"", "another activation");
  config.require("use_sliding_window", "false", "sliding windows");
  config.require("decoder_sparse_step", "1", "layers without experts");
  config.require("mlp_only_layers", "[]", "layers without experts");
  config.require("attention_dropout", "0.0", "dropout");
  config.require("quantization_config", "null", "quantised weights");
  if (!config.has("qkv_bias")) throw oom::FileError(oom::cat(config.source(), ": qkv_bias: must be false; it is absent, and the family's default is true"));
  oom::models::ignore_bookkeeping(config);
  config.ignore({"intermediate_size", "sliding_window", "max_window_layers", "layer_types"});
  config.finish();

  if (geometry.heads % geometry.kv_heads != 0)
    throw oom::FileError(oom::cat(config.source(), ": num_key_value_heads: must divide num_attention_heads = ", geometry.heads, "; got ", geometry.kv_heads));
  if (geometry.head_dim % 2 != 0) throw oom::FileError(oom::cat(config.source(), ": head_dim: must be even; got ", geometry.head_dim));
  if (geometry.top_k > geometry.experts)
    throw oom::FileError(oom::cat(config.source(), ": num_experts_per_tok: must be at most num_experts = ", geometry.experts, "; got ", geometry.top_k));
  return geometry;
}

Geometry geometry_of(const oom::ModelDescription& description) {
  return read(oom::ModelConfig::parse(description.config_json, "config.json"), {.yarn_factor = description.yarn_factor});
}

// Positions of a layer's parameters, in the order in which describe lists them.
enum Position { kInputNorm, kQuery, kKey, kValue, kOutput, kPostNorm, kRouter, kGateUp, kDown, kSharedGateProjection, kSharedUp, kSharedDown, kSharedGate };

// Published files have a tensor for each expert; transformers can also write them as it holds them, fused.
std::vector<oom::FileLayout> layouts_of(const oom::ParameterSpec& spec) {
  if (spec.role != ParameterRole::kExpert) return {oom::models::whole_layout(spec)};
  return {oom::models::split_expert_layout(spec, {.stem = spec.name.substr(0, spec.name.rfind('.'))}), oom::models::whole_layout(spec)};
}

}  // namespace

bool Qwen2Moe::accepts(const oom::ModelConfig& config) const { return config.string("model_type", "") == "qwen2_moe"; }

oom::ModelDescription Qwen2Moe::describe(const oom::ModelConfig& config, const oom::ModelOptions& options) const {
  const Geometry geometry = read(config, options);
  oom::models::DescriptionBuilder model("qwen2_moe", config, options, geometry.initial_std);
  model.description.routed = {geometry.experts, geometry.top_k, geometry.width, "silu"};
  model.description.router_aux_loss = geometry.aux_coefficient;
  model.description.max_positions = geometry.max_positions;
  model.description.file_layouts = layouts_of;

  const int64_t hidden = geometry.hidden, query = geometry.heads * geometry.head_dim, key = geometry.kv_heads * geometry.head_dim;
  model.embedding(geometry.vocabulary, hidden);
  for (int layer = 0; layer < geometry.layers; ++layer) {
    model.begin_layer({"full_attention", "moe"});
    model.constant("input_layernorm.weight", {hidden});
    model.matrix("self_attn.q_proj.weight", {query, hidden}, ParameterRole::kAttention);
    model.matrix("self_attn.k_proj.weight", {key, hidden}, ParameterRole::kAttention);
    model.matrix("self_attn.v_proj.weight", {key, hidden}, ParameterRole::kAttention);
    model.matrix("self_attn.o_proj.weight", {hidden, query}, ParameterRole::kAttention);
    model.constant("post_attention_layernorm.weight", {hidden});
    model.matrix("mlp.gate.weight", {geometry.experts, hidden}, ParameterRole::kRouter);
    model.matrix("mlp.experts.gate_up_proj", {geometry.experts, 2 * geometry.width, hidden}, ParameterRole::kExpert);
    model.matrix("mlp.experts.down_proj", {geometry.experts, hidden, geometry.width}, ParameterRole::kExpert);
    model.matrix("mlp.shared_expert.gate_proj.weight", {geometry.shared_width, hidden}, ParameterRole::kSharedExpert);
    model.matrix("mlp.shared_expert.up_proj.weight", {geometry.shared_width, hidden}, ParameterRole::kSharedExpert);
    model.matrix("mlp.shared_expert.down_proj.weight", {hidden, geometry.shared_width}, ParameterRole::kSharedExpert);
    model.matrix("mlp.shared_expert_gate.weight", {1, hidden}, ParameterRole::kSharedGate);
  }
  model.head(geometry.tied);
  return std::move(model.description);
}

std::unique_ptr<oom::Mixer> Qwen2Moe::mixer(const oom::ModelDescription& description, int) const {
  const Geometry geometry = geometry_of(description);
  return oom::make_attention({.hidden = geometry.hidden,
                              .query_heads = geometry.heads,
                              .kv_heads = geometry.kv_heads,
                              .head_dim = geometry.head_dim,
                              .scale = 1.0 / std::sqrt(static_cast<double>(geometry.head_dim)),
                              .rotary = geometry.rotary,
                              .input_norm = {kInputNorm, geometry.epsilon},
                              .query = kQuery,
                              .key = kKey,
                              .value = kValue,
                              .output = kOutput});
}

std::unique_ptr<oom::FeedForward> Qwen2Moe::feed_forward(const oom::ModelDescription& description, int) const {
  const Geometry geometry = geometry_of(description);
  return oom::make_moe({.hidden = geometry.hidden,
                        .experts = geometry.experts,
                        .input_norm = {kPostNorm, geometry.epsilon},
                        .router = kRouter,
                        // The weights take the model's dtype, as in transformers 5.17.
                        .routing = {.top_k = geometry.top_k, .renormalise = geometry.renormalise, .round_weights = true},
                        .shared = {.gate = kSharedGateProjection, .up = kSharedUp, .down = kSharedDown, .width = geometry.shared_width},
                        .shared_gate = kSharedGate});
}

oom::ModelAdapter::FinalNorm Qwen2Moe::final_norm(const oom::ModelDescription& description) const { return {.epsilon = geometry_of(description).epsilon}; }

}  // namespace qwen2_moe
