#include "geometry.h"

#include <oom/models/config_values.h>
#include <oom/models/description.h>
#include <oom/models/expert_files.h>

namespace oom::gemma4 {
namespace {

[[noreturn]] void refuse(const ModelConfig& config, const std::string& what) { throw FileError(cat(config.source(), ": ", what)); }

// Where the file names no rotary parameters, the class's own stand.
ops::RotarySettings read_rope(const std::optional<ModelConfig>& all, const char* layer_type, const ops::RotarySettings& otherwise) {
  const std::optional<ModelConfig> rope = all ? all->child(layer_type) : std::nullopt;
  if (!rope) return otherwise;
  ops::RotarySettings rotary{.theta = rope->number("rope_theta", otherwise.theta)};
  models::require_positive(*rope, cat("rope_parameters.", layer_type, ".rope_theta"), rotary.theta);
  const std::string type = rope->string("rope_type", rope->string("type", "default"));
  if (type == "proportional") {
    rotary.kind = ops::RotaryKind::kProportional;
    rotary.partial_factor = rope->number("partial_rotary_factor", 1.0);
    rotary.factor = rope->number("factor", 1.0);
    models::require_positive(*rope, cat("rope_parameters.", layer_type, ".partial_rotary_factor"), rotary.partial_factor);
    models::require_positive(*rope, cat("rope_parameters.", layer_type, ".factor"), rotary.factor);
  } else if (type == "default") {
    rope->require("partial_rotary_factor", "1.0", "rotary embedding of a part of each head without the proportional type");
  } else {
    refuse(*rope, cat("rope_parameters.", layer_type, ".rope_type: must be default or proportional; got \"", type, "\""));
  }
  return rotary;
}

// transformers from 5.16 on writes what differs between layers as per_layer_config {"5": {"head_dim": 512, "num_key_value_heads": 2}}; before, two
// global_ keys spoke for all full layers.
void read_layers(const ModelConfig& config, Geometry& geometry) {
  const int64_t count = config.integer("num_hidden_layers");
  models::require_layer_count(config, count);
  const std::vector<std::string> types = config.strings("layer_types");
  if (static_cast<int64_t>(types.size()) != count) refuse(config, cat("layer_types: must name each of the ", count, " layers; got ", types.size()));
  const int64_t head_dim = config.integer("head_dim"), kv_heads = config.integer("num_key_value_heads");
  const std::optional<ModelConfig> overrides = config.child("per_layer_config");
  const int64_t global_head_dim = config.integer("global_head_dim", 512), global_kv_heads = config.integer("num_global_key_value_heads", kv_heads);
  for (size_t layer = 0; layer < types.size(); ++layer) {
    LayerGeometry shape{.sliding = types[layer] == "sliding_attention", .head_dim = head_dim, .kv_heads = kv_heads};
    if (!shape.sliding && types[layer] != "full_attention") {
      refuse(config, cat("layer_types: layer ", layer, " must be sliding_attention or full_attention; got \"", types[layer], "\""));
    }
    if (overrides) {
      if (const std::optional<ModelConfig> own = overrides->child(std::to_string(layer))) {
        shape.head_dim = own->integer("head_dim", head_dim);
        shape.kv_heads = own->integer("num_key_value_heads", kv_heads);
      }
    } else if (!shape.sliding) {
      shape.head_dim = global_head_dim;
      if (geometry.shared_key_value) shape.kv_heads = global_kv_heads;
    }
    models::require_sizes(config, {{"head_dim", shape.head_dim}, {"num_key_value_heads", shape.kv_heads}});
    if (shape.head_dim % 2 != 0) refuse(config, cat("head_dim: must be even; layer ", layer, " has ", shape.head_dim));
    if (geometry.heads % shape.kv_heads != 0) {
      refuse(config, cat("num_key_value_heads: must divide num_attention_heads = ", geometry.heads, "; layer ", layer, " has ", shape.kv_heads));
    }
    geometry.layers.push_back(shape);
  }
  if (geometry.layers.back().sliding) refuse(config, "layer_types: the last layer must be full_attention, as transformers makes it");
}

void read_text(const ModelConfig& config, Geometry& geometry) {
  geometry.hidden = config.integer("hidden_size");
  geometry.vocabulary = config.integer("vocab_size");
  geometry.heads = config.integer("num_attention_heads");
  geometry.dense_width = config.integer("intermediate_size");
  geometry.shared_key_value = config.flag("attention_k_eq_v", false);
  if (!config.flag("enable_moe_block", false)) refuse(config, "enable_moe_block: must be true: Gemma4 without routed experts is not implemented");
  geometry.experts = config.integer("num_experts");
  geometry.top_k = config.integer("top_k_experts");
  geometry.expert_width = config.integer("moe_intermediate_size");
  models::require_sizes(config, {{"hidden_size", geometry.hidden}, {"vocab_size", geometry.vocabulary}, {"num_attention_heads", geometry.heads},
                                 {"intermediate_size", geometry.dense_width}, {"num_experts", geometry.experts}, {"top_k_experts", geometry.top_k},
                                 {"moe_intermediate_size", geometry.expert_width}});
  if (geometry.top_k > geometry.experts) refuse(config, cat("top_k_experts: must be at most num_experts = ", geometry.experts, "; got ", geometry.top_k));
  read_layers(config, geometry);
  geometry.window = config.integer("sliding_window");
  if (geometry.window <= 0) refuse(config, cat("sliding_window: must be greater than 0; got ", geometry.window));
  geometry.epsilon = config.number("rms_norm_eps", 1e-6);
  models::require_positive(config, "rms_norm_eps", geometry.epsilon);
  geometry.soft_cap = config.number("final_logit_softcapping", 0.0);
  if (geometry.soft_cap < 0) refuse(config, cat("final_logit_softcapping: must be null or greater than 0; got ", geometry.soft_cap));
  geometry.initial_std = config.number("initializer_range", 0.02);
  models::require_not_negative(config, "initializer_range", geometry.initial_std);
  geometry.max_positions = config.integer("max_position_embeddings", 131072);
  models::require_positive(config, "max_position_embeddings", static_cast<double>(geometry.max_positions));
  geometry.padding_token = config.has("pad_token_id") ? config.integer("pad_token_id") : -1;
  if (geometry.padding_token >= geometry.vocabulary) refuse(config, cat("pad_token_id: must be below vocab_size = ", geometry.vocabulary, "; got ", geometry.padding_token));

  const std::optional<ModelConfig> rope = config.child("rope_parameters");
  geometry.sliding_rotary = read_rope(rope, "sliding_attention", {.theta = 1e4});
  geometry.full_rotary = read_rope(rope, "full_attention", {.kind = ops::RotaryKind::kProportional, .theta = 1e6, .partial_factor = 0.25});

  if (config.integer("hidden_size_per_layer_input", 256) != 0) refuse(config, "hidden_size_per_layer_input: must be 0 (absent means 256): per-layer embeddings are not implemented");
  config.require("num_kv_shared_layers", "0", "layers that share another layer's keys and values");
  config.require("use_double_wide_mlp", "false", "a dense MLP of twice its width");
  // "vision" lets image tokens see each other; text alone is causal.
  if (const std::string seen = config.string("use_bidirectional_attention", "vision"); seen != "vision") {
    refuse(config, cat("use_bidirectional_attention: must be null or \"vision\"; got \"", seen, "\""));
  }
  config.require("hidden_activation", "\"gelu_pytorch_tanh\"", "another activation");
  config.require("attention_bias", "false", "biases in attention");
  config.require("attention_dropout", "0.0", "dropout");
  config.require("quantization_config", "null", "quantised weights");
  config.require("output_router_logits", "false", "an auxiliary loss of config.json's own; set train.router_aux_loss instead");
  config.ignore({"vocab_size_per_layer_input"});
  models::ignore_bookkeeping(config);
}

}  // namespace

ops::RotarySettings Geometry::rotary(int layer) const {
  ops::RotarySettings settings = layers[layer].sliding ? sliding_rotary : full_rotary;
  settings.head_dim = layers[layer].head_dim;
  return settings;
}

Geometry read_geometry(const ModelConfig& config, const ModelOptions& options) {
  Geometry geometry;
  geometry.nested = config.string("model_type", "") == "gemma4";
  const std::optional<ModelConfig> inner = geometry.nested ? config.child("text_config") : std::nullopt;
  if (geometry.nested && !inner) refuse(config, "text_config: missing; it describes the language model");
  const ModelConfig& text = inner ? *inner : config;
  read_text(text, geometry);
  geometry.tied = text.flag("tie_word_embeddings", true);
  if (inner) {
    if (config.flag("tie_word_embeddings", geometry.tied) != geometry.tied) refuse(config, "tie_word_embeddings: text_config says otherwise; make both the same");
    // Parts that are carried through, and the tokens that stand for them.
    config.ignore({"vision_config", "audio_config", "image_token_id", "video_token_id", "audio_token_id", "boi_token_id", "eoi_token_id", "boa_token_id", "eoa_token_id", "eoa_token_index",
                   "vision_soft_tokens_per_image", "initializer_range"});
    config.require("quantization_config", "null", "quantised weights");
    models::ignore_bookkeeping(config);
  }
  config.finish();
  if (options.yarn_factor > 1.0) {
    throw ConfigError(cat("model.yarn_factor = ", options.yarn_factor, ": Gemma4's full layers turn a part of each head at proportional frequencies, for which there is no YaRN; leave it at 1"));
  }
  return geometry;
}

}  // namespace oom::gemma4
