/// The simplest activation strategy: every layer's input stays on its GPU until the backward, which replays the layer from it.
///
/// What an activation strategy does: it conducts a step, saying which layer comes when, what is stored where, and what is replayed.
#pragma once

#include <oom/activation_strategy.h>
#include <oom/host_services.h>

namespace on_device {

class OnDevice : public oom::ActivationStrategy {
 public:
  explicit OnDevice(const oom::HostServices&) {}

  void configure(const oom::ModelDescription& model, oom::Plan& plan) const override;
  void emit_training(oom::StepEmitter& emitter) override;
  void emit_evaluation(oom::StepEmitter& emitter) override;
};

}  // namespace on_device
