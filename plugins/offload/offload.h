/// Split, Keep, Replay: README.md.
#pragma once

#include <oom/activation_strategy.h>
#include <oom/settings.h>

namespace oom::offload {

class Offload final : public ActivationStrategy {
 public:
  explicit Offload(const HostServices& services);
  static const SettingsSchema& settings_schema();

  void configure(const ModelDescription& model, Plan& plan) const override;
  void check(const ModelDescription& model, const Plan& plan) const override;
  std::vector<Plan> alternatives(const ModelDescription& model, const Plan& plan) const override;
  std::vector<Plan> propose(const ModelDescription& model, const Plan& plan, const PlanningContext& context) const override;
  int64_t feed_forward_tokens(const ModelDescription& model, const Plan& plan) const override;
  void emit_training(StepEmitter& emitter) override;
  void emit_evaluation(StepEmitter& emitter) override;

 private:
  SettingsTable given() const;

  const HostServices& services_;
};

}  // namespace oom::offload
