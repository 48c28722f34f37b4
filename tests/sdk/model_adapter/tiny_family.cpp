#include "tiny_family.h"

#include <oom/blocks.h>

#include <cmath>
#include <initializer_list>
#include <utility>

namespace tiny_family {
namespace {

constexpr double kEpsilon = 1e-6;

struct Geometry {
  int64_t hidden, vocabulary, layers, heads, head_dim, experts, top_k, width;
};

// Every key is read or ignored by name: `finish` refuses the rest, so that a variant this code does not know is never trained as if it were another.
Geometry read(const oom::ModelConfig& config) {
  const Geometry geometry{.hidden = config.integer("hidden_size"),
                          .vocabulary = config.integer("vocab_size"),
                          .layers = config.integer("num_hidden_layers"),
                          .heads = config.integer("num_attention_heads"),
                          .head_dim = config.integer("head_dim"),
                          .experts = config.integer("num_experts"),
                          .top_k = config.integer("num_experts_per_tok"),
                          .width = config.integer("moe_intermediate_size")};
  config.ignore({"model_type", "architectures", "torch_dtype"});
  config.finish();
  // The file is untrusted. The bounds keep products of sizes within 64 bits.
  for (const auto& [key, value, most] : {std::tuple{"hidden_size", geometry.hidden, 1 << 20}, {"vocab_size", geometry.vocabulary, 1 << 20}, {"num_hidden_layers", geometry.layers, 10000},
                                         {"num_attention_heads", geometry.heads, 1 << 10}, {"head_dim", geometry.head_dim, 1 << 10}, {"num_experts", geometry.experts, 1 << 10},
                                         {"num_experts_per_tok", geometry.top_k, 1 << 10}, {"moe_intermediate_size", geometry.width, 1 << 20}}) {
    if (value < 1 || value > most) throw oom::FileError(oom::cat(config.source(), ": ", key, ": must be from 1 to ", most, "; got ", value));
  }
  if (geometry.head_dim % 2 != 0) throw oom::FileError(oom::cat(config.source(), ": head_dim: must be even, for rotary positions; got ", geometry.head_dim));
  if (geometry.top_k > geometry.experts)
    throw oom::FileError(oom::cat(config.source(), ": num_experts_per_tok: must be at most num_experts = ", geometry.experts, "; got ", geometry.top_k));
  return geometry;
}

// A layer's parameters, in the order in which describe() lists them: operators find theirs by this position.
enum Position { kAttentionNorm, kQuery, kKey, kValue, kOutput, kExpertNorm, kRouter, kGateUp, kDown };

Geometry geometry_of(const oom::ModelDescription& description) { return read(oom::ModelConfig::parse(description.config_json, "config.json")); }

}  // namespace

bool TinyFamily::accepts(const oom::ModelConfig& config) const { return config.string("model_type", "") == "tiny_family"; }

oom::ModelDescription TinyFamily::describe(const oom::ModelConfig& config, const oom::ModelOptions&) const {
  using Role = oom::ParameterRole;
  const Geometry geometry = read(config);
  oom::ModelDescription model;
  model.family = "tiny_family";
  model.hidden = geometry.hidden;
  model.vocabulary = geometry.vocabulary;
  model.routed = {geometry.experts, geometry.top_k, geometry.width, "silu"};
  model.config_json = config.text();
  // Files hold each parameter as one tensor of the same name; nothing is carried through that is not trained.
  model.file_layouts = [](const oom::ParameterSpec& spec) { return std::vector<oom::FileLayout>{{{spec.name, 0, spec.shape}}}; };
  model.carried_through = [](const std::string&) { return false; };

  const oom::Initialisation normal{oom::Initialisation::Kind::kNormal, 0.05}, one{oom::Initialisation::Kind::kConstant, 1.0};
  const auto add = [&](std::string name, std::vector<int64_t> shape, Role role, int layer, const oom::Initialisation& init) {
    model.parameters.push_back({std::move(name), std::move(shape), role, layer, init});
  };
  const int64_t hidden = geometry.hidden, inner = geometry.heads * geometry.head_dim;
  add("embed.weight", {geometry.vocabulary, hidden}, Role::kEmbedding, oom::kEmbeddingLayer, normal);
  for (int layer = 0; layer < geometry.layers; ++layer) {
    const std::string stem = oom::cat("layers.", layer, ".");
    add(stem + "attention_norm.weight", {hidden}, Role::kNorm, layer, one);
    add(stem + "query.weight", {inner, hidden}, Role::kAttention, layer, normal);
    add(stem + "key.weight", {inner, hidden}, Role::kAttention, layer, normal);
    add(stem + "value.weight", {inner, hidden}, Role::kAttention, layer, normal);
    add(stem + "output.weight", {hidden, inner}, Role::kAttention, layer, normal);
    add(stem + "expert_norm.weight", {hidden}, Role::kNorm, layer, one);
    add(stem + "router.weight", {geometry.experts, hidden}, Role::kRouter, layer, normal);
    // Expert tensors hold all experts: gate rows and up rows together, then down.
    add(stem + "experts.gate_up", {geometry.experts, 2 * geometry.width, hidden}, Role::kExpert, layer, normal);
    add(stem + "experts.down", {geometry.experts, hidden, geometry.width}, Role::kExpert, layer, normal);
    model.layers.push_back({"full_attention", "moe"});
  }
  add("norm.weight", {hidden}, Role::kNorm, oom::kHeadLayer, one);
  add("head.weight", {geometry.vocabulary, hidden}, Role::kHead, oom::kHeadLayer, normal);
  return model;
}

std::unique_ptr<oom::Mixer> TinyFamily::mixer(const oom::ModelDescription& description, int) const {
  const Geometry geometry = geometry_of(description);
  return oom::make_attention({.hidden = geometry.hidden,
                              .query_heads = geometry.heads,
                              .kv_heads = geometry.heads,
                              .head_dim = geometry.head_dim,
                              .scale = 1.0 / std::sqrt(static_cast<double>(geometry.head_dim)),
                              .rotary = {.head_dim = geometry.head_dim},
                              .input_norm = {.weight = kAttentionNorm, .epsilon = kEpsilon},
                              .query = kQuery,
                              .key = kKey,
                              .value = kValue,
                              .output = kOutput});
}

std::unique_ptr<oom::FeedForward> TinyFamily::feed_forward(const oom::ModelDescription& description, int) const {
  const Geometry geometry = geometry_of(description);
  return oom::make_moe({.hidden = geometry.hidden,
                        .experts = geometry.experts,
                        .input_norm = {.weight = kExpertNorm, .epsilon = kEpsilon},
                        .router = kRouter,
                        .routing = {.top_k = geometry.top_k, .renormalise = true}});
}

oom::ModelAdapter::FinalNorm TinyFamily::final_norm(const oom::ModelDescription&) const { return {.epsilon = kEpsilon}; }

}  // namespace tiny_family
