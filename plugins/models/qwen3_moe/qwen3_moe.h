/// Qwen3-MoE (Qwen3MoeForCausalLM; Qwen3-30B-A3B and its kin): attention with norms on each query and key head, routed SwiGLU experts in
/// every layer that is sparse, a dense SwiGLU in the others, no shared expert.
#pragma once

#include <oom/model_adapter.h>

namespace oom::qwen3_moe {

class Qwen3Moe final : public ModelAdapter {
 public:
  explicit Qwen3Moe(const HostServices& services);

  bool accepts(const ModelConfig& config) const override;
  ModelDescription describe(const ModelConfig& config, const ModelOptions& options) const override;
  std::unique_ptr<Mixer> mixer(const ModelDescription& description, int layer) const override;
  std::unique_ptr<FeedForward> feed_forward(const ModelDescription& description, int layer) const override;
  FinalNorm final_norm(const ModelDescription& description) const override;
};

}  // namespace oom::qwen3_moe
