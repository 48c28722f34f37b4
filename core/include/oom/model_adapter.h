/// A model family: recognises a config.json, describes the model as data, and builds its operators out of the core's.
/// Order of calls: accepts, describe (planning thread), then mixer and feed_forward once per layer before the first step.
#pragma once

#include <memory>
#include <string>

#include "oom/model.h"
#include "oom/model_config.h"
#include "oom/plugin.h"
#include "oom/sublayer.h"

namespace oom {
inline namespace abi_1 {

/// What the user's config adds to the model's own.
struct ModelOptions {
  double yarn_factor = 1.0;  ///< > 1: YaRN with that factor
};

class OOM_API ModelAdapter : public Plugin {
 public:
  ~ModelAdapter() override;

  /// Returns true when `config` names this family (its model_type).
  virtual bool accepts(const ModelConfig& config) const = 0;
  /// Describes the model. Every key is read or ignored by name; throws FileError naming what is missing, wrong or not understood.
  virtual ModelDescription describe(const ModelConfig& config, const ModelOptions& options) const = 0;
  /// Builds layer `layer`'s operators for a model this adapter described. Parameters are found in call.weights in the order in
  /// which that layer's appear in description.parameters. Thread-safe after construction: operators keep no state of a call.
  virtual std::unique_ptr<Mixer> mixer(const ModelDescription& description, int layer) const = 0;
  virtual std::unique_ptr<FeedForward> feed_forward(const ModelDescription& description, int layer) const = 0;
  /// The norm before the head: epsilon and flavour are the family's.
  struct FinalNorm {
    double epsilon = 1e-6;
    int flavour = 0;  ///< ops::NormFlavour
  };
  virtual FinalNorm final_norm(const ModelDescription& description) const = 0;
};

}  // namespace abi_1
}  // namespace oom
