/// Gemma4 with routed experts (Gemma4ForCausalLM, and the text model of Gemma4ForConditionalGeneration; Gemma4-26B-A4B).
#pragma once

#include <oom/model_adapter.h>

namespace oom::gemma4 {

class Gemma4 final : public ModelAdapter {
 public:
  explicit Gemma4(const HostServices& services);

  bool accepts(const ModelConfig& config) const override;
  ModelDescription describe(const ModelConfig& config, const ModelOptions& options) const override;
  std::unique_ptr<Mixer> mixer(const ModelDescription& description, int layer) const override;
  std::unique_ptr<FeedForward> feed_forward(const ModelDescription& description, int layer) const override;
  FinalNorm final_norm(const ModelDescription& description) const override;
};

}  // namespace oom::gemma4
