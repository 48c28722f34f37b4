/// Qwen3.5-MoE (Qwen3_5MoeForCausalLM, and the language model inside Qwen3_5MoeForConditionalGeneration; Qwen3.6-35B-A3B, Qwen3.5-122B-A10B): three
/// Gated DeltaNet layers to one of output-gated attention, routed SwiGLU experts and a gated shared one in every layer.
#pragma once

#include <oom/model_adapter.h>

namespace oom::qwen3_5_moe {

class Qwen35Moe final : public ModelAdapter {
 public:
  explicit Qwen35Moe(const HostServices& services);

  bool accepts(const ModelConfig& config) const override;
  ModelDescription describe(const ModelConfig& config, const ModelOptions& options) const override;
  std::unique_ptr<Mixer> mixer(const ModelDescription& description, int layer) const override;
  std::unique_ptr<FeedForward> feed_forward(const ModelDescription& description, int layer) const override;
  FinalNorm final_norm(const ModelDescription& description) const override;
};

}  // namespace oom::qwen3_5_moe
