#include "qwen3_moe.h"

#include <oom/blocks.h>
#include <oom/models/config_values.h>
#include <oom/models/description.h>
#include <oom/models/expert_files.h>
#include <oom/models/rotary_config.h>

#include <cmath>

namespace oom::qwen3_moe {
namespace {

/// What of config.json the operators need, read again from the description's own copy: the description itself stays family-neutral.
struct Geometry {
  int64_t hidden, vocabulary, layers, heads, kv_heads, head_dim, experts, top_k, expert_width, dense_width, sparse_step;
  std::vector<int64_t> dense_layers;
  double epsilon, initial_std;
  bool renormalise, tied;
  ops::RotarySettings rotary;
  int64_t max_positions = 0;
  double aux_coefficient = 0;

  bool routed(int layer) const {
    return experts > 0 && std::find(dense_layers.begin(), dense_layers.end(), layer) == dense_layers.end() && (layer + 1) % sparse_step == 0;
  }
};

Geometry read(const ModelConfig& config, const ModelOptions& options) {
  Geometry geometry{};
  geometry.hidden = config.integer("hidden_size");
  geometry.vocabulary = config.integer("vocab_size");
  geometry.layers = config.integer("num_hidden_layers");
  geometry.heads = config.integer("num_attention_heads");
  geometry.kv_heads = config.integer("num_key_value_heads", geometry.heads);
  geometry.head_dim = config.integer("head_dim", 128);
  // transformers from 5.8 on saves num_local_experts.
  geometry.experts = config.has("num_experts") || !config.has("num_local_experts") ? config.integer("num_experts") : config.integer("num_local_experts");
  config.ignore({"num_local_experts"});
  geometry.top_k = config.integer("num_experts_per_tok");
  geometry.expert_width = config.integer("moe_intermediate_size");
  geometry.dense_width = config.integer("intermediate_size", 0);
  geometry.sparse_step = config.integer("decoder_sparse_step", 1);
  geometry.dense_layers = config.integers("mlp_only_layers", {});
  geometry.epsilon = config.number("rms_norm_eps", 1e-6);
  geometry.initial_std = config.number("initializer_range", 0.02);
  geometry.renormalise = config.flag("norm_topk_prob", false);
  geometry.tied = config.flag("tie_word_embeddings", false);
  geometry.max_positions = config.integer("max_position_embeddings", 32768);
  if (config.flag("output_router_logits", false)) geometry.aux_coefficient = config.number("router_aux_loss_coef", 0.001);
  geometry.rotary = models::read_rotary(config, options, geometry.head_dim, geometry.max_positions, {.theta = 10000.0, .partial_factor = 0, .without_effect = {}});

  config.require("hidden_act", "\"silu\"", "another activation");
  config.require("attention_bias", "false", "biases in attention");
  config.require("use_sliding_window", "false", "sliding windows in Qwen3-MoE");
  config.require("attention_dropout", "0.0", "dropout");
  config.require("quantization_config", "null", "quantised weights");
  models::ignore_bookkeeping(config);
  config.ignore({"max_window_layers", "sliding_window", "layer_types"});
  config.finish();

  models::require_sizes(config, {{"hidden_size", geometry.hidden}, {"vocab_size", geometry.vocabulary}, {"num_attention_heads", geometry.heads},
                                 {"num_key_value_heads", geometry.kv_heads}, {"head_dim", geometry.head_dim}, {"num_experts", geometry.experts},
                                 {"num_experts_per_tok", geometry.top_k}, {"moe_intermediate_size", geometry.expert_width}, {"decoder_sparse_step", geometry.sparse_step}});
  models::require_layer_count(config, geometry.layers);
  models::require_layer_indices(config, "mlp_only_layers", geometry.dense_layers, geometry.layers);
  models::require_positive(config, "rms_norm_eps", geometry.epsilon);
  models::require_positive(config, "max_position_embeddings", static_cast<double>(geometry.max_positions));
  models::require_not_negative(config, "initializer_range", geometry.initial_std);
  models::require_not_negative(config, "router_aux_loss_coef", geometry.aux_coefficient);
  if (geometry.heads % geometry.kv_heads != 0)
    throw FileError(cat(config.source(), ": num_key_value_heads: must divide num_attention_heads = ", geometry.heads, "; got ", geometry.kv_heads));
  if (geometry.top_k > geometry.experts) throw FileError(cat(config.source(), ": num_experts_per_tok: must be at most num_experts = ", geometry.experts, "; got ", geometry.top_k));
  if (geometry.head_dim % 2 != 0) throw FileError(cat(config.source(), ": head_dim: must be even; got ", geometry.head_dim));
  return geometry;
}

// Positions of a layer's parameters, in the order in which describe lists them.
enum Attention { kInputNorm, kQuery, kKey, kValue, kOutput, kQueryNorm, kKeyNorm, kPostNorm, kAttentionParameters };
enum Sparse { kRouter = kAttentionParameters, kGateUp, kDown };
enum Dense { kDenseGate = kAttentionParameters, kDenseUp, kDenseDown };

Geometry geometry_of(const ModelDescription& description, double yarn_factor = 1.0) {
  return read(ModelConfig::parse(description.config_json, "config.json"), {.yarn_factor = yarn_factor});
}

std::vector<FileLayout> layouts_of(const ParameterSpec& spec) {
  if (spec.role != ParameterRole::kExpert) return {models::whole_layout(spec)};
  return {models::split_expert_layout(spec, {.stem = spec.name.substr(0, spec.name.rfind('.'))}), models::whole_layout(spec)};
}

}  // namespace

Qwen3Moe::Qwen3Moe(const HostServices&) {}

bool Qwen3Moe::accepts(const ModelConfig& config) const { return config.string("model_type", "") == "qwen3_moe"; }

ModelDescription Qwen3Moe::describe(const ModelConfig& config, const ModelOptions& options) const {
  const Geometry geometry = read(config, options);
  models::DescriptionBuilder model("qwen3_moe", config, options, geometry.initial_std);
  model.description.routed = {geometry.experts, geometry.top_k, geometry.expert_width, "silu"};
  model.description.router_aux_loss = geometry.aux_coefficient;
  model.description.max_positions = geometry.max_positions;
  model.description.file_layouts = layouts_of;

  const int64_t hidden = geometry.hidden, query = geometry.heads * geometry.head_dim, key = geometry.kv_heads * geometry.head_dim;
  model.embedding(geometry.vocabulary, hidden);
  for (int layer = 0; layer < geometry.layers; ++layer) {
    const bool routed = geometry.routed(layer);
    model.begin_layer({"full_attention", routed ? "moe" : "dense"});
    model.constant("input_layernorm.weight", {hidden});
    model.matrix("self_attn.q_proj.weight", {query, hidden}, ParameterRole::kAttention);
    model.matrix("self_attn.k_proj.weight", {key, hidden}, ParameterRole::kAttention);
    model.matrix("self_attn.v_proj.weight", {key, hidden}, ParameterRole::kAttention);
    model.matrix("self_attn.o_proj.weight", {hidden, query}, ParameterRole::kAttention);
    model.constant("self_attn.q_norm.weight", {geometry.head_dim});
    model.constant("self_attn.k_norm.weight", {geometry.head_dim});
    model.constant("post_attention_layernorm.weight", {hidden});
    if (routed) {
      model.matrix("mlp.gate.weight", {geometry.experts, hidden}, ParameterRole::kRouter);
      model.matrix("mlp.experts.gate_up_proj", {geometry.experts, 2 * geometry.expert_width, hidden}, ParameterRole::kExpert);
      model.matrix("mlp.experts.down_proj", {geometry.experts, hidden, geometry.expert_width}, ParameterRole::kExpert);
      continue;
    }
    if (geometry.dense_width <= 0) throw FileError(cat(config.source(), ": intermediate_size: dense layer ", layer, " needs it; got ", geometry.dense_width));
    model.matrix("mlp.gate_proj.weight", {geometry.dense_width, hidden}, ParameterRole::kDenseMlp);
    model.matrix("mlp.up_proj.weight", {geometry.dense_width, hidden}, ParameterRole::kDenseMlp);
    model.matrix("mlp.down_proj.weight", {hidden, geometry.dense_width}, ParameterRole::kDenseMlp);
  }
  model.head(geometry.tied);
  return std::move(model.description);
}

std::unique_ptr<Mixer> Qwen3Moe::mixer(const ModelDescription& description, int) const {
  const Geometry geometry = geometry_of(description, description.yarn_factor);
  return make_attention({.hidden = geometry.hidden,
                         .query_heads = geometry.heads,
                         .kv_heads = geometry.kv_heads,
                         .head_dim = geometry.head_dim,
                         .scale = 1.0 / std::sqrt(static_cast<double>(geometry.head_dim)),
                         .rotary = geometry.rotary,
                         .input_norm = {kInputNorm, geometry.epsilon},
                         .query_norm = {kQueryNorm, geometry.epsilon},
                         .key_norm = {kKeyNorm, geometry.epsilon},
                         .query = kQuery,
                         .key = kKey,
                         .value = kValue,
                         .output = kOutput});
}

std::unique_ptr<FeedForward> Qwen3Moe::feed_forward(const ModelDescription& description, int layer) const {
  const Geometry geometry = geometry_of(description);
  MoeSettings settings{.hidden = geometry.hidden, .input_norm = {kPostNorm, geometry.epsilon}};
  if (geometry.routed(layer)) {
    settings.experts = geometry.experts;
    settings.router = kRouter;
    // The weights take the model's dtype, as in transformers 5.17.
    settings.routing = {.top_k = geometry.top_k, .renormalise = geometry.renormalise, .round_weights = true};
  } else {
    settings.shared = {.gate = kDenseGate, .up = kDenseUp, .down = kDenseDown, .width = geometry.dense_width};
  }
  return make_moe(settings);
}

ModelAdapter::FinalNorm Qwen3Moe::final_norm(const ModelDescription& description) const {
  return {geometry_of(description).epsilon, static_cast<int>(ops::NormFlavour::kLlama)};
}

}  // namespace oom::qwen3_moe
