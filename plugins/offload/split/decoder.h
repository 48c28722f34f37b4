/// Emits one decoder layer, cut as the policy says: its forward, or its replay and backward.
#pragma once

#include "../keep/attention_pool.h"
#include "cuts.h"

namespace oom::offload {

class Decoder {
 public:
  Decoder(StepEmitter& emitter, const Policy& policy, AttentionPool* pool);

  /// x -> z. Pass::kForward decides routing and fills the pool; Pass::kReplay makes the same again with what the forward decided and kept.
  void emit_forward(int layer, Pass pass, const Activation& x, const Activation& z);
  /// Replay and backward: returns the gradient of x, given that of z.
  Activation emit_backward(int layer, const Activation& x, const Activation& dz);

 private:
  /// One layer's backward while it is being emitted.
  struct Backward;

  void emit_mixer_forward(int layer, Pass pass, const Delivery& ordinary, const MixerPlan& plan, const SequenceRange& range, const Activation& x, const Activation& y,
                          const AttentionResults& kept);
  /// The states at the borders of a sequence's slices; the first is empty. `keep`: one slot each, else one that rolls.
  void emit_sequence_forward(int layer, Pass pass, const Delivery& ordinary, const std::vector<MixerPart>& parts, const Activation& x, const Activation& y, const AttentionResults& kept,
                             std::vector<RankBuffers>* states);
  void emit_cut_replay(Backward& backward, const SequenceRange& range, const Activation& y);
  void emit_cut_backward(Backward& backward, const SequenceRange& range);
  RankBuffers add_state(int layer, const std::string& what);
  bool is_cut(const MixerPlan& plan) const;

  StepEmitter& emitter_;
  const Policy& policy_;
  AttentionPool* pool_;
  const int64_t length_;
  const std::vector<SequenceRange> ranges_;
};

}  // namespace oom::offload
