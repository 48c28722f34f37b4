#include "oom/models/description.h"

namespace oom::models {

DescriptionBuilder::DescriptionBuilder(std::string family, const ModelConfig& config, const ModelOptions& options, double initial_std)
    : normal_{Initialisation::Kind::kNormal, initial_std} {
  description.family = std::move(family);
  description.config_json = config.text();
  description.yarn_factor = options.yarn_factor;
  description.carried_through = [](const std::string&) { return false; };
}

void DescriptionBuilder::embedding(int64_t vocabulary, int64_t hidden) {
  description.vocabulary = vocabulary;
  description.hidden = hidden;
  add("model.embed_tokens.weight", {vocabulary, hidden}, ParameterRole::kEmbedding, normal_, true);
}

void DescriptionBuilder::begin_layer(LayerSpec spec) {
  layer_ = static_cast<int>(description.layers.size());
  description.layers.push_back(std::move(spec));
}

void DescriptionBuilder::matrix(const std::string& name, std::vector<int64_t> shape, ParameterRole role) { add(name, std::move(shape), role, normal_, true); }

void DescriptionBuilder::constant(const std::string& name, std::vector<int64_t> shape, ParameterRole role, double value) {
  add(name, std::move(shape), role, {Initialisation::Kind::kConstant, value}, true);
}

void DescriptionBuilder::initialised(const std::string& name, std::vector<int64_t> shape, ParameterRole role, const Initialisation& init) {
  add(name, std::move(shape), role, init, true);
}

void DescriptionBuilder::buffer(const std::string& name, std::vector<int64_t> shape, double value) {
  add(name, std::move(shape), ParameterRole::kBuffer, {Initialisation::Kind::kConstant, value}, false);
}

void DescriptionBuilder::head(bool tied, double norm_value) {
  layer_ = kHeadLayer;
  description.tied_embeddings = tied;
  constant("model.norm.weight", {description.hidden}, ParameterRole::kNorm, norm_value);
  if (!tied) matrix("lm_head.weight", {description.vocabulary, description.hidden}, ParameterRole::kHead);
}

void DescriptionBuilder::add(std::string name, std::vector<int64_t> shape, ParameterRole role, Initialisation init, bool trained) {
  if (layer_ >= 0) name = cat("model.layers.", layer_, ".", name);
  description.parameters.push_back({std::move(name), std::move(shape), role, layer_, init, trained});
}

}  // namespace oom::models
