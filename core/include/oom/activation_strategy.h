/// Conducts a step: the order of layers and slices, what is stored where, what is kept and what is replayed.
///
/// Order of calls: configure (while planning), then emit once per program. Nothing is called during steps.
#pragma once

#include "oom/expert_strategy.h"
#include "oom/planning_context.h"

namespace oom {
inline namespace abi_1 {

class OOM_API ActivationStrategy : public Plugin {
 public:
  ~ActivationStrategy() override;

  /// Resolves this strategy's settings for a workload into plan.settings. Throws ConfigError naming key, value and choices.
  virtual void configure(const ModelDescription& model, Plan& plan) const = 0;
  /// Judges this strategy's settings in a plan file that is executed as it stands. Throws ConfigError when they cannot be used for the model.
  virtual void check(const ModelDescription&, const Plan&) const {}
  /// A configured plan with other settings of this strategy, where the user left them to the engine: tried when the plan does not fit its budgets. The last
  /// takes the least memory.
  virtual std::vector<Plan> alternatives(const ModelDescription&, const Plan&) const { return {}; }
  /// Plans worth judging beside a configured one and alternatives(), where the user left settings to the engine: found by costs and budgets. The engine accounts
  /// and simulates each, so they need not be right, only near. In any order.
  virtual std::vector<Plan> propose(const ModelDescription&, const Plan&, const PlanningContext&) const { return {}; }
  /// Most tokens of a rank that the feed-forward shall handle at once under a configured plan.
  virtual int64_t feed_forward_tokens(const ModelDescription&, const Plan& plan) const { return plan.tokens_per_rank(); }
  /// Emits a training step from begin_step to end_step.
  virtual void emit_training(StepEmitter& emitter) = 0;
  /// Emits a forward that ends in the loss and changes nothing (`oom eval`).
  virtual void emit_evaluation(StepEmitter& emitter) = 0;
};

}  // namespace abi_1
}  // namespace oom
