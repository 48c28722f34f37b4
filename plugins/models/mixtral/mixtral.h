/// Mixtral (MixtralForCausalLM; Mixtral-8x7B and its kin): grouped-query attention without head norms, routed SwiGLU experts in every layer.
#pragma once

#include <oom/model_adapter.h>

namespace oom::mixtral {

class Mixtral final : public ModelAdapter {
 public:
  explicit Mixtral(const HostServices& services);

  bool accepts(const ModelConfig& config) const override;
  ModelDescription describe(const ModelConfig& config, const ModelOptions& options) const override;
  std::unique_ptr<Mixer> mixer(const ModelDescription& description, int layer) const override;
  std::unique_ptr<FeedForward> feed_forward(const ModelDescription& description, int layer) const override;
  FinalNorm final_norm(const ModelDescription& description) const override;
};

}  // namespace oom::mixtral
