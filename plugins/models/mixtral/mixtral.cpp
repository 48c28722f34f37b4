#include "mixtral.h"

#include <oom/blocks.h>
#include <oom/models/config_values.h>
#include <oom/models/description.h>
#include <oom/models/expert_files.h>
#include <oom/models/rotary_config.h>

#include <cmath>

namespace oom::mixtral {
namespace {

struct Geometry {
  int64_t hidden, vocabulary, layers, heads, kv_heads, head_dim, experts, top_k, expert_width, window, max_positions;
  double epsilon, initial_std, aux_coefficient;
  bool tied;
  ops::RotarySettings rotary;
};

Geometry read(const ModelConfig& config, const ModelOptions& options) {
  Geometry geometry{};
  geometry.hidden = config.integer("hidden_size");
  geometry.vocabulary = config.integer("vocab_size");
  geometry.layers = config.integer("num_hidden_layers");
  geometry.heads = config.integer("num_attention_heads");
  geometry.kv_heads = config.integer("num_key_value_heads", geometry.heads);
  geometry.experts = config.has("num_local_experts") || !config.has("num_experts") ? config.integer("num_local_experts") : config.integer("num_experts");
  config.ignore({"num_experts"});
  geometry.top_k = config.integer("num_experts_per_tok");
  geometry.expert_width = config.integer("intermediate_size");
  geometry.epsilon = config.number("rms_norm_eps", 1e-5);
  geometry.initial_std = config.number("initializer_range", 0.02);
  geometry.tied = config.flag("tie_word_embeddings", false);
  geometry.max_positions = config.integer("max_position_embeddings", 131072);
  geometry.window = config.integer("sliding_window", 0);
  geometry.aux_coefficient = config.flag("output_router_logits", false) ? config.number("router_aux_loss_coef", 0.001) : 0.0;
  models::require_sizes(config, {{"hidden_size", geometry.hidden}, {"vocab_size", geometry.vocabulary}, {"num_attention_heads", geometry.heads},
                                 {"num_key_value_heads", geometry.kv_heads}, {"num_local_experts", geometry.experts}, {"num_experts_per_tok", geometry.top_k},
                                 {"intermediate_size", geometry.expert_width}});
  models::require_layer_count(config, geometry.layers);
  models::require_positive(config, "rms_norm_eps", geometry.epsilon);
  models::require_positive(config, "max_position_embeddings", static_cast<double>(geometry.max_positions));
  models::require_not_negative(config, "initializer_range", geometry.initial_std);
  models::require_not_negative(config, "router_aux_loss_coef", geometry.aux_coefficient);
  if (geometry.window < 0) throw FileError(cat(config.source(), ": sliding_window: must be null or greater than 0; got ", geometry.window));
  if (geometry.heads % geometry.kv_heads != 0)
    throw FileError(cat(config.source(), ": num_key_value_heads: must divide num_attention_heads = ", geometry.heads, "; got ", geometry.kv_heads));
  if (geometry.top_k > geometry.experts)
    throw FileError(cat(config.source(), ": num_experts_per_tok: must be at most num_local_experts = ", geometry.experts, "; got ", geometry.top_k));
  geometry.head_dim = config.integer("head_dim", geometry.hidden / geometry.heads);
  if (geometry.head_dim <= 0 || geometry.head_dim % 2 != 0) throw FileError(cat(config.source(), ": head_dim: must be even and greater than 0; got ", geometry.head_dim));
  geometry.rotary = models::read_rotary(config, options, geometry.head_dim, geometry.max_positions, {.theta = 1e6, .partial_factor = 0, .without_effect = {}});
  config.require("hidden_act", "\"silu\"", "another activation");
  config.require("router_jitter_noise", "0.0", "noise on the router's input");
  config.require("attention_dropout", "0.0", "dropout");
  config.require("attention_bias", "false", "biases in attention");
  config.require("quantization_config", "null", "quantised weights");
  models::ignore_bookkeeping(config);
  config.finish();
  return geometry;
}

Geometry geometry_of(const ModelDescription& description) {
  return read(ModelConfig::parse(description.config_json, "config.json"), {.yarn_factor = description.yarn_factor});
}

// Positions of a layer's parameters, in the order in which describe lists them.
enum Parameter { kInputNorm, kQuery, kKey, kValue, kOutput, kPostNorm, kRouter, kGateUp, kDown };

// Files say block_sparse_moe where memory says mlp; w1 is gate, w3 is up, w2 is down.
std::string file_name(std::string name) {
  const size_t at = name.find(".mlp.");
  return at == std::string::npos ? name : name.replace(at, 5, ".block_sparse_moe.");
}

std::vector<FileLayout> layouts_of(const ParameterSpec& spec) {
  if (spec.role == ParameterRole::kExpert) {
    const std::string stem = spec.name.substr(0, spec.name.rfind('.'));
    return {models::split_expert_layout(spec, {.stem = file_name(stem), .gate = "w1.weight", .up = "w3.weight", .down = "w2.weight"}), models::whole_layout(spec)};
  }
  const std::string renamed = file_name(spec.name);
  if (renamed == spec.name) return {models::whole_layout(spec)};
  return {FileLayout{{renamed, 0, spec.shape}}, models::whole_layout(spec)};
}

}  // namespace

Mixtral::Mixtral(const HostServices&) {}

bool Mixtral::accepts(const ModelConfig& config) const { return config.string("model_type", "") == "mixtral"; }

ModelDescription Mixtral::describe(const ModelConfig& config, const ModelOptions& options) const {
  const Geometry geometry = read(config, options);
  models::DescriptionBuilder model("mixtral", config, options, geometry.initial_std);
  model.description.routed = {geometry.experts, geometry.top_k, geometry.expert_width, "silu"};
  model.description.router_aux_loss = geometry.aux_coefficient;
  model.description.max_positions = geometry.max_positions;
  model.description.file_layouts = layouts_of;

  const int64_t hidden = geometry.hidden, query = geometry.heads * geometry.head_dim, key = geometry.kv_heads * geometry.head_dim;
  model.embedding(geometry.vocabulary, hidden);
  for (int64_t layer = 0; layer < geometry.layers; ++layer) {
    model.begin_layer({geometry.window > 0 ? "sliding_attention" : "full_attention", "moe"});
    model.constant("input_layernorm.weight", {hidden});
    model.matrix("self_attn.q_proj.weight", {query, hidden}, ParameterRole::kAttention);
    model.matrix("self_attn.k_proj.weight", {key, hidden}, ParameterRole::kAttention);
    model.matrix("self_attn.v_proj.weight", {key, hidden}, ParameterRole::kAttention);
    model.matrix("self_attn.o_proj.weight", {hidden, query}, ParameterRole::kAttention);
    model.constant("post_attention_layernorm.weight", {hidden});
    model.matrix("mlp.gate.weight", {geometry.experts, hidden}, ParameterRole::kRouter);
    model.matrix("mlp.experts.gate_up_proj", {geometry.experts, 2 * geometry.expert_width, hidden}, ParameterRole::kExpert);
    model.matrix("mlp.experts.down_proj", {geometry.experts, hidden, geometry.expert_width}, ParameterRole::kExpert);
  }
  model.head(geometry.tied);
  return std::move(model.description);
}

std::unique_ptr<Mixer> Mixtral::mixer(const ModelDescription& description, int) const {
  const Geometry geometry = geometry_of(description);
  return make_attention({.hidden = geometry.hidden,
                         .query_heads = geometry.heads,
                         .kv_heads = geometry.kv_heads,
                         .head_dim = geometry.head_dim,
                         .scale = 1.0 / std::sqrt(static_cast<double>(geometry.head_dim)),
                         .window_tokens = geometry.window,
                         .rotary = geometry.rotary,
                         .input_norm = {kInputNorm, geometry.epsilon},
                         .query = kQuery,
                         .key = kKey,
                         .value = kValue,
                         .output = kOutput});
}

std::unique_ptr<FeedForward> Mixtral::feed_forward(const ModelDescription& description, int) const {
  const Geometry geometry = geometry_of(description);
  // Mixtral's weights stay FP32, as in transformers 5.17.
  return make_moe({.hidden = geometry.hidden,
                   .experts = geometry.experts,
                   .input_norm = {kPostNorm, geometry.epsilon},
                   .router = kRouter,
                   .routing = {.top_k = geometry.top_k, .renormalise = true, .round_weights = false}});
}

ModelAdapter::FinalNorm Mixtral::final_norm(const ModelDescription& description) const { return {geometry_of(description).epsilon, static_cast<int>(ops::NormFlavour::kLlama)}; }

}  // namespace oom::mixtral
