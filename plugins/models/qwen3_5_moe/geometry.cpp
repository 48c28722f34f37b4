#include "geometry.h"

#include <oom/models/config_values.h>
#include <oom/models/description.h>
#include <oom/models/expert_files.h>
#include <oom/models/rotary_config.h>
#include <oom/ops/causal_conv.h>

namespace oom::qwen3_5_moe {
namespace {

[[noreturn]] void refuse(const ModelConfig& config, const std::string& what) { throw FileError(cat(config.source(), ": ", what)); }

// layer_types names each layer; without it every full_attention_interval-th layer attends.
std::vector<bool> read_layers(const ModelConfig& config) {
  const int64_t count = config.integer("num_hidden_layers"), interval = config.integer("full_attention_interval", 4);
  models::require_layer_count(config, count);
  models::require_sizes(config, {{"full_attention_interval", interval}});
  std::vector<bool> linear;
  if (!config.has("layer_types")) {
    for (int64_t layer = 0; layer < count; ++layer) linear.push_back((layer + 1) % interval != 0);
    config.ignore({"layer_types"});
    return linear;
  }
  const std::vector<std::string> types = config.strings("layer_types");
  if (static_cast<int64_t>(types.size()) != count) refuse(config, cat("layer_types: must name each of the ", count, " layers; got ", types.size()));
  for (const std::string& type : types) {
    if (type != "linear_attention" && type != "full_attention") {
      refuse(config, cat("layer_types: layer ", linear.size(), " must be linear_attention or full_attention; got \"", type, "\""));
    }
    linear.push_back(type == "linear_attention");
  }
  return linear;
}

void read_text(const ModelConfig& config, const ModelOptions& options, Geometry& geometry) {
  geometry.hidden = config.integer("hidden_size");
  geometry.vocabulary = config.integer("vocab_size");
  geometry.linear = read_layers(config);
  geometry.heads = config.integer("num_attention_heads");
  geometry.kv_heads = config.integer("num_key_value_heads", geometry.heads);
  geometry.head_dim = config.integer("head_dim", 256);
  geometry.key_heads = config.integer("linear_num_key_heads", 16);
  geometry.value_heads = config.integer("linear_num_value_heads", 32);
  geometry.key_dim = config.integer("linear_key_head_dim", 128);
  geometry.value_dim = config.integer("linear_value_head_dim", 128);
  geometry.taps = config.integer("linear_conv_kernel_dim", 4);
  // transformers from 5.8 on may save num_local_experts.
  geometry.experts = config.has("num_experts") || !config.has("num_local_experts") ? config.integer("num_experts") : config.integer("num_local_experts");
  config.ignore({"num_local_experts"});
  geometry.top_k = config.integer("num_experts_per_tok");
  geometry.expert_width = config.integer("moe_intermediate_size");
  geometry.shared_width = config.integer("shared_expert_intermediate_size");
  geometry.epsilon = config.number("rms_norm_eps", 1e-6);
  geometry.initial_std = config.number("initializer_range", 0.02);
  geometry.max_positions = config.integer("max_position_embeddings", 32768);
  geometry.padding_token = config.has("pad_token_id") ? config.integer("pad_token_id") : -1;
  if (geometry.padding_token >= geometry.vocabulary) refuse(config, cat("pad_token_id: must be below vocab_size = ", geometry.vocabulary, "; got ", geometry.padding_token));
  if (config.flag("output_router_logits", false)) geometry.aux_coefficient = config.number("router_aux_loss_coef", 0.001);
  models::require_sizes(config, {{"hidden_size", geometry.hidden}, {"vocab_size", geometry.vocabulary}, {"num_attention_heads", geometry.heads},
                    {"num_key_value_heads", geometry.kv_heads}, {"head_dim", geometry.head_dim}, {"linear_num_key_heads", geometry.key_heads},
                    {"linear_num_value_heads", geometry.value_heads}, {"linear_key_head_dim", geometry.key_dim}, {"linear_value_head_dim", geometry.value_dim},
                    {"num_experts", geometry.experts}, {"num_experts_per_tok", geometry.top_k}, {"moe_intermediate_size", geometry.expert_width},
                    {"shared_expert_intermediate_size", geometry.shared_width}});
  if (geometry.heads % geometry.kv_heads != 0) refuse(config, cat("num_key_value_heads: must divide num_attention_heads = ", geometry.heads, "; got ", geometry.kv_heads));
  if (geometry.value_heads % geometry.key_heads != 0) {
    refuse(config, cat("linear_num_key_heads: must divide linear_num_value_heads = ", geometry.value_heads, "; got ", geometry.key_heads));
  }
  if (geometry.taps < ops::kMinimumTaps || geometry.taps > ops::kMaximumTaps) {
    refuse(config, cat("linear_conv_kernel_dim: must be from ", ops::kMinimumTaps, " to ", ops::kMaximumTaps, "; got ", geometry.taps));
  }
  if (geometry.top_k > geometry.experts) refuse(config, cat("num_experts_per_tok: must be at most num_experts = ", geometry.experts, "; got ", geometry.top_k));
  models::require_positive(config, "rms_norm_eps", geometry.epsilon);
  models::require_positive(config, "max_position_embeddings", static_cast<double>(geometry.max_positions));
  models::require_not_negative(config, "initializer_range", geometry.initial_std);
  models::require_not_negative(config, "router_aux_loss_coef", geometry.aux_coefficient);
  // Text has the same position on all three axes of the multimodal embedding, which then is the ordinary one.
  geometry.rotary = models::read_rotary(config, options, geometry.head_dim, geometry.max_positions,
                                        {.theta = 10000.0, .partial_factor = 0.25, .without_effect = {"mrope_section", "mrope_interleaved"}});
  if (const auto turning = static_cast<int64_t>(static_cast<double>(geometry.head_dim) * geometry.rotary.partial_factor);
      geometry.rotary.partial_factor > 1 || turning <= 0 || turning % 2 != 0) {
    refuse(config, cat("partial_rotary_factor: must rotate an even number of a head's ", geometry.head_dim, " dimensions; got ", geometry.rotary.partial_factor));
  }

  config.require("hidden_act", "\"silu\"", "another activation");
  config.require("attention_bias", "false", "biases in attention");
  config.require("attention_dropout", "0.0", "dropout");
  config.require("attn_output_gate", "true", "attention without its output gate");
  config.require("norm_topk_prob", "true", "routing weights that do not sum to one");
  config.require("mlp_only_layers", "[]", "layers without routed experts");
  config.require("decoder_sparse_step", "1", "layers without routed experts");
  config.require("use_sliding_window", "false", "sliding windows in Qwen3.5-MoE");
  config.require("quantization_config", "null", "quantised weights");
  models::ignore_bookkeeping(config);
  // The recurrent state is FP32 always; layers for multi-token prediction are carried along untrained; intermediate_size has no layer to be of.
  config.ignore({"mamba_ssm_dtype", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "intermediate_size"});
}

}  // namespace

Geometry read_geometry(const ModelConfig& config, const ModelOptions& options) {
  Geometry geometry;
  geometry.nested = config.string("model_type", "") == "qwen3_5_moe";
  if (!geometry.nested) {
    read_text(config, options, geometry);
    geometry.tied = config.flag("tie_word_embeddings", false);
    config.finish();
    return geometry;
  }
  const std::optional<ModelConfig> text = config.child("text_config");
  if (!text) refuse(config, "text_config: missing; it describes the language model");
  read_text(*text, options, geometry);
  geometry.tied = text->flag("tie_word_embeddings", config.flag("tie_word_embeddings", false));
  config.require("quantization_config", "null", "quantised weights");
  models::ignore_bookkeeping(config);
  config.ignore({"vision_config", "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id", "tie_word_embeddings", "language_model_only"});
  config.finish();
  return geometry;
}

Geometry geometry_of(const ModelDescription& description) {
  return read_geometry(ModelConfig::parse(description.config_json, "config.json"), {.yarn_factor = description.yarn_factor});
}

}  // namespace oom::qwen3_5_moe
