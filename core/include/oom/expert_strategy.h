/// Decides where a layer's routed experts compute, and emits the stages that bring weights to tokens or tokens to weights.
///
/// Order of calls: configure (while planning), add_units (once per program, before any stage), then emit_forward and emit_backward as
/// the ActivationStrategy conducts them. Nothing is called during steps: what was emitted runs. One instance per process, used by the
/// planning thread alone.
#pragma once

#include "oom/plugin.h"
#include "oom/step_emitter.h"

namespace oom {
inline namespace abi_1 {

/// Buffers of one layer's routed experts, one a rank. All are transient slots of the rank's compute lane. T: tokens of `part`.
struct ExpertBuffers {
  TokenPart part;       ///< the tokens that the call is about; all of them, unless takes_parts()
  RankBuffers front;    ///< slot.front.expert_input [T, H]: input of the experts
  RankBuffers routing;  ///< slot.routing: decisions of the layer's forward, also in replay and backward
  RankBuffers routed;   ///< slot.tensor [T, H]: their weighted sum, written by emit_forward. Empty: nobody reads it, only `saved` is wanted
  RankBuffers saved;    ///< slot.saved: filled by emit_forward for emit_backward. Empty: nothing is saved (plain forward)
};
struct ExpertGradientBuffers {
  RankBuffers drouted;   ///< slot.tensor [T, H]: gradient of routed
  RankBuffers dinput;    ///< slot.tensor [T, H]: written: gradient of front.expert_input
  RankBuffers dweights;  ///< slot.tensor FP32 [T, K]: written: gradient of the routing weights
};

class OOM_API ExpertStrategy : public Plugin {
 public:
  ~ExpertStrategy() override;

  /// Resolves this strategy's settings for a workload into plan.settings. Throws ConfigError naming key, value and choices.
  virtual void configure(const ModelDescription& model, Plan& plan) const = 0;
  /// Judges this strategy's settings in a plan file that is executed as it stands, and takes over into the plan's shared fields what they say of those.
  /// Throws ConfigError when they cannot be used for the model.
  virtual void check(const ModelDescription&, Plan&) const {}
  /// A configured plan with other settings of this strategy, where the user left them to the engine: each takes less GPU memory than the one before and as a
  /// rule more time. `last_resort`: those too that are worth their time only where nothing else fits.
  virtual std::vector<Plan> alternatives(const ModelDescription&, const Plan&, bool /*last_resort*/) const { return {}; }
  /// Which sublayers' backward tensors the planner may leave on the GPU (Plan::retained_feed_forward, Plan::retained_attention): those that this strategy can
  /// do without replaying and that the user left to the engine.
  struct Retention {
    bool feed_forward = false;
    bool attention = false;
  };
  virtual Retention retention() const { return {}; }
  /// True when a layer's tokens may come in several calls. False: every call has all tokens of a rank, whatever the ActivationStrategy cuts.
  virtual bool takes_parts() const { return false; }
  /// Registers the bank of every routed layer. StepEmitter::feed_forward_tokens says whether gradients come in parts.
  virtual void add_units(StepEmitter& emitter) = 0;
  /// Emits delivery of the bank and the experts' forward of `layer`.
  virtual void emit_forward(StepEmitter& emitter, int layer, const ExpertBuffers& buffers) = 0;
  /// Emits the backward, the bank's gradients included: of `part.first` they are written, of others added. Retires the bank with `part.last`.
  /// buffers.saved is consumed.
  virtual void emit_backward(StepEmitter& emitter, int layer, const ExpertBuffers& buffers, const ExpertGradientBuffers& gradients) = 0;
};

}  // namespace abi_1
}  // namespace oom
