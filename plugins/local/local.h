/// Local execution: the bank of the current layer is delivered to every GPU, each of which runs all experts over its own tokens;
/// gradients are reduced over the GPUs, and each shard of the bank is updated by its owner.
#pragma once

#include <oom/expert_strategy.h>
#include <oom/settings.h>

namespace oom::local {

class Local final : public ExpertStrategy {
 public:
  explicit Local(const HostServices& services);
  static const SettingsSchema& settings_schema();

  void configure(const ModelDescription& model, Plan& plan) const override;
  void check(const ModelDescription& model, Plan& plan) const override;
  bool takes_parts() const override { return true; }
  void add_units(StepEmitter& emitter) override;
  void emit_forward(StepEmitter& emitter, int layer, const ExpertBuffers& buffers) override;
  void emit_backward(StepEmitter& emitter, int layer, const ExpertBuffers& buffers, const ExpertGradientBuffers& gradients) override;

 private:
  const HostServices& services_;
  std::vector<UnitId> banks_;  // by layer; -1: not routed
  GradientTarget target_;      // of the layer whose backward is being emitted
};

}  // namespace oom::local
