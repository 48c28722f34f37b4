/// What every adapter does alike: checks of sizes out of a config.json, and the list of a model's parameters in file order.
#pragma once

#include <oom/model_adapter.h>

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace oom::models {

/// Throws FileError unless each value is positive and far enough below 2^63 that products of sizes stay within 64 bits.
void require_sizes(const ModelConfig& config, std::initializer_list<std::pair<const char*, int64_t>> sizes);
/// Throws FileError unless `layers` is a number of layers that a model may have.
void require_layer_count(const ModelConfig& config, int64_t layers);

/// Lists parameters in file order. From begin_layer on names are relative to "model.layers.N.", and tensors belong to that layer.
class DescriptionBuilder {
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
