/// The simplest expert strategy: every GPU gets the whole bank of the current layer and runs all experts over its own tokens; no token travels.
///
/// What an expert strategy does: it registers the parameters of routed layers as units, and emits stages that compute with them. Bringing
/// weights to the GPUs (`deliver`), adding up gradients and updating (`retire`) is the core's work.
#pragma once

#include <oom/expert_strategy.h>
#include <oom/host_services.h>

#include <vector>

namespace whole_bank {

class WholeBank final : public oom::ExpertStrategy {
 public:
  explicit WholeBank(const oom::HostServices&) {}

  void configure(const oom::ModelDescription& model, oom::Plan& plan) const override;
  void add_units(oom::StepEmitter& emitter) override;
  void emit_forward(oom::StepEmitter& emitter, int layer, const oom::ExpertBuffers& buffers) override;
  void emit_backward(oom::StepEmitter& emitter, int layer, const oom::ExpertBuffers& buffers, const oom::ExpertGradientBuffers& gradients) override;

 private:
  std::vector<oom::UnitId> banks_;  // by layer; -1: a layer without routed experts
};

}  // namespace whole_bank
