/// Qwen2-MoE as transformers 5.17 computes it, out of the core's operators: attention without biases, routed experts, and a shared expert that every token
/// takes, behind a gate. docs/writing_a_model.md goes through this file.
#pragma once

#include <oom/host_services.h>
#include <oom/model_adapter.h>

#include <memory>

namespace qwen2_moe {

class Qwen2Moe final : public oom::ModelAdapter {
 public:
  explicit Qwen2Moe(const oom::HostServices&) {}

  bool accepts(const oom::ModelConfig& config) const override;
  oom::ModelDescription describe(const oom::ModelConfig& config, const oom::ModelOptions& options) const override;
  std::unique_ptr<oom::Mixer> mixer(const oom::ModelDescription& description, int layer) const override;
  std::unique_ptr<oom::FeedForward> feed_forward(const oom::ModelDescription& description, int layer) const override;
  FinalNorm final_norm(const oom::ModelDescription& description) const override;
};

}  // namespace qwen2_moe
