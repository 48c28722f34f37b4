/// Emits one decoder layer, cut as the policy says: its forward, or its replay and backward. Halves that the layer retains are not replayed.
#pragma once

#include <map>

#include "../keep/attention_pool.h"
#include "cuts.h"

namespace oom::offload {

class Transit;

class Decoder {
 public:
  /// `pool` and `transit`: null where nothing is trained.
  Decoder(StepEmitter& emitter, const Policy& policy, AttentionPool* pool, Transit* transit);

  /// x -> z, which may take x's place. Pass::kForward decides routing, fills the pool and retains; Pass::kReplay makes the same again with what the forward decided and kept.
  void emit_forward(int layer, Pass pass, const Activation& x, const Activation& z);
  /// Replay and backward: returns the gradient of x, given that of z.
  Activation emit_backward(int layer, const Activation& x, const Activation& dz);

 private:
  /// What the forward of a layer leaves on the GPU for its backward.
  struct Retained {
    RankBuffers mixer;    // what it saved
    Activation y;         // its result; no buffers: the mixer is replayed
    std::vector<FeedForwardRecord> feed_forward;  // by part; empty: replayed
  };
  /// One layer's backward while it is being emitted.
  struct Backward;

  void emit_mixer_forward(int layer, Pass pass, const Delivery& ordinary, const MixerPlan& plan, const SequenceRange& range, const Activation& x, const Activation& y,
                          const AttentionResults& kept);
  /// The states at the borders of a sequence's slices; the first is empty. `keep`: one slot each, else one that rolls.
  void emit_sequence_forward(int layer, Pass pass, const Delivery& ordinary, const std::vector<MixerPart>& parts, const Activation& x, const Activation& y, const AttentionResults& kept,
                             std::vector<RankBuffers>* states);
  void emit_cut_replay(Backward& backward, const SequenceRange& range, const Activation& y);
  void emit_cut_backward(Backward& backward, const SequenceRange& range);
  /// The result of a retained mixer: the forward makes it.
  Activation retained_y(int layer, const Delivery& ordinary, Pass pass, const Activation& x);
  RankBuffers add_state(int layer, const std::string& what);
  bool is_cut(const MixerPlan& plan) const;

  StepEmitter& emitter_;
  const Policy& policy_;
  AttentionPool* pool_;
  Transit* transit_;
  const int64_t length_;
  const std::vector<SequenceRange> ranges_;
  std::map<int, Retained> retained_;  // by layer
};

}  // namespace oom::offload
