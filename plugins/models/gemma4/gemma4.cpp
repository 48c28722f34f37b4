#include "gemma4.h"

#include <oom/blocks.h>
#include <oom/models/description.h>
#include <oom/models/expert_files.h>

#include <cmath>

#include "feed_forward.h"
#include "geometry.h"

namespace oom::gemma4 {
namespace {

// Positions of a layer's parameters, in the order in which describe lists them; a layer whose values share the keys' projection has no kValue.
enum Parameter {
  kInputNorm, kQuery, kKey, kOutput, kQueryNorm, kKeyNorm, kPostAttentionNorm, kDenseNorm, kGate, kUp, kDown, kDenseOutNorm, kExpertNorm, kRouterScale, kRouter, kExpertScale,
  kGateUp, kExpertDown, kExpertOutNorm, kOutNorm, kLayerScalar, kValue
};

bool beside_the_text(const std::string& tensor) {
  for (const char* part : {"model.vision_tower.", "model.embed_vision.", "model.audio_tower.", "model.embed_audio."}) {
    if (tensor.starts_with(part)) return true;
  }
  return false;
}

Geometry geometry_of(const ModelDescription& description) { return read_geometry(ModelConfig::parse(description.config_json, "config.json"), {}); }

NormSettings norm(int weight, const Geometry& geometry) { return {.weight = weight, .epsilon = geometry.epsilon, .flavour = ops::NormFlavour::kPlain}; }

}  // namespace

Gemma4::Gemma4(const HostServices&) {}

bool Gemma4::accepts(const ModelConfig& config) const {
  const std::string type = config.string("model_type", "");
  return type == "gemma4" || type == "gemma4_text";
}

ModelDescription Gemma4::describe(const ModelConfig& config, const ModelOptions& options) const {
  const Geometry geometry = read_geometry(config, options);
  models::DescriptionBuilder model("gemma4", config, options, geometry.initial_std);
  model.description.routed = {geometry.experts, geometry.top_k, geometry.expert_width, "gelu_tanh"};
  model.description.embedding_scale = std::sqrt(static_cast<double>(geometry.hidden));
  model.description.padding_token = geometry.padding_token;
  model.description.logit_softcap = geometry.soft_cap;
  model.description.max_positions = geometry.max_positions;
  model.description.file_layouts = [nested = geometry.nested](const ParameterSpec& spec) { return models::layouts_under_prefixes(spec, nested); };
  model.description.carried_through = beside_the_text;

  const int64_t hidden = geometry.hidden, dense = geometry.dense_width, experts = geometry.experts, width = geometry.expert_width;
  model.embedding(geometry.vocabulary, hidden);
  for (size_t layer = 0; layer < geometry.layers.size(); ++layer) {
    const LayerGeometry& shape = geometry.layers[layer];
    const int64_t query = geometry.heads * shape.head_dim, key = shape.kv_heads * shape.head_dim;
    model.begin_layer({shape.sliding ? "sliding_attention" : "full_attention", "moe"});
    model.constant("input_layernorm.weight", {hidden});
    model.matrix("self_attn.q_proj.weight", {query, hidden}, ParameterRole::kAttention);
    model.matrix("self_attn.k_proj.weight", {key, hidden}, ParameterRole::kAttention);
    model.matrix("self_attn.o_proj.weight", {hidden, query}, ParameterRole::kAttention);
    model.constant("self_attn.q_norm.weight", {shape.head_dim});
    model.constant("self_attn.k_norm.weight", {shape.head_dim});
    model.constant("post_attention_layernorm.weight", {hidden});
    model.constant("pre_feedforward_layernorm.weight", {hidden});
    model.matrix("mlp.gate_proj.weight", {dense, hidden}, ParameterRole::kDenseMlp);
    model.matrix("mlp.up_proj.weight", {dense, hidden}, ParameterRole::kDenseMlp);
    model.matrix("mlp.down_proj.weight", {hidden, dense}, ParameterRole::kDenseMlp);
    model.constant("post_feedforward_layernorm_1.weight", {hidden});
    model.constant("pre_feedforward_layernorm_2.weight", {hidden});
    model.constant("router.scale", {hidden}, ParameterRole::kRouter);
    model.matrix("router.proj.weight", {experts, hidden}, ParameterRole::kRouter);
    model.constant("router.per_expert_scale", {experts}, ParameterRole::kRouter);
    model.matrix("experts.gate_up_proj", {experts, 2 * width, hidden}, ParameterRole::kExpert);
    model.matrix("experts.down_proj", {experts, hidden, width}, ParameterRole::kExpert);
    model.constant("post_feedforward_layernorm_2.weight", {hidden});
    model.constant("post_feedforward_layernorm.weight", {hidden});
    model.buffer("layer_scalar", {1}, 1.0);
    if (!geometry.shares_value(static_cast<int>(layer))) model.matrix("self_attn.v_proj.weight", {key, hidden}, ParameterRole::kAttention);
  }
  model.head(geometry.tied);
  return std::move(model.description);
}

std::unique_ptr<Mixer> Gemma4::mixer(const ModelDescription& description, int layer) const {
  const Geometry geometry = geometry_of(description);
  const LayerGeometry& shape = geometry.layers.at(layer);
  return make_attention({.hidden = geometry.hidden,
                         .query_heads = geometry.heads,
                         .kv_heads = shape.kv_heads,
                         .head_dim = shape.head_dim,
                         .scale = 1.0,
                         .window_tokens = shape.sliding ? geometry.window : 0,
                         .rotary = geometry.rotary(layer),
                         .input_norm = norm(kInputNorm, geometry),
                         .query_norm = norm(kQueryNorm, geometry),
                         .key_norm = norm(kKeyNorm, geometry),
                         .value_norm = {.epsilon = geometry.epsilon, .flavour = ops::NormFlavour::kPlain, .weightless = true},
                         .output_norm = norm(kPostAttentionNorm, geometry),
                         .query = kQuery,
                         .key = kKey,
                         .value = geometry.shares_value(layer) ? -1 : kValue,
                         .output = kOutput});
}

std::unique_ptr<FeedForward> Gemma4::feed_forward(const ModelDescription& description, int) const {
  const Geometry geometry = geometry_of(description);
  return make_feed_forward({.hidden = geometry.hidden,
                            .experts = geometry.experts,
                            .dense_width = geometry.dense_width,
                            .epsilon = geometry.epsilon,
                            // The weights stay FP32, as in transformers 5.17.
                            .routing = {.top_k = geometry.top_k, .renormalise = true, .round_weights = false},
                            .dense_norm = kDenseNorm,
                            .gate = kGate,
                            .up = kUp,
                            .down = kDown,
                            .dense_out_norm = kDenseOutNorm,
                            .expert_norm = kExpertNorm,
                            .expert_out_norm = kExpertOutNorm,
                            .router_scale = kRouterScale,
                            .router = kRouter,
                            .expert_scale = kExpertScale,
                            .out_norm = kOutNorm,
                            .layer_scalar = kLayerScalar});
}

ModelAdapter::FinalNorm Gemma4::final_norm(const ModelDescription& description) const { return {geometry_of(description).epsilon, static_cast<int>(ops::NormFlavour::kPlain)}; }

}  // namespace oom::gemma4
