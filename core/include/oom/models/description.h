/// Describes a model of the shape that transformers gives most families: parameters in file order under "model.".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "oom/model_adapter.h"

namespace oom::models {

/// Lists parameters in file order. From begin_layer on names are relative to "model.layers.N.", and tensors belong to that layer.
class OOM_API DescriptionBuilder {
 public:
  /// A description of `family` with its config's text; matrices are initialised with `initial_std`.
  DescriptionBuilder(std::string family, const ModelConfig& config, const ModelOptions& options, double initial_std);

  void embedding(int64_t vocabulary, int64_t hidden);
  void begin_layer(LayerSpec spec);
  /// Normal initial values.
  void matrix(const std::string& name, std::vector<int64_t> shape, ParameterRole role);
  /// Constant initial values: norms (kNorm) and scales.
  void constant(const std::string& name, std::vector<int64_t> shape, ParameterRole role = ParameterRole::kNorm, double value = 1.0);
  void initialised(const std::string& name, std::vector<int64_t> shape, ParameterRole role, const Initialisation& init);
  /// A tensor that is loaded, used and exported, never updated.
  void buffer(const std::string& name, std::vector<int64_t> shape, double value);
  /// The final norm and, unless it is tied to the embedding, the head. No layer can follow.
  void head(bool tied, double norm_value = 1.0);

  ModelDescription description;

 private:
  void add(std::string name, std::vector<int64_t> shape, ParameterRole role, Initialisation init, bool trained);

  Initialisation normal_;
  int layer_ = kEmbeddingLayer;
};

}  // namespace oom::models
