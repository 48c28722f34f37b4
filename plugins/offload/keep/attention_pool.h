/// Keep: attention results in pinned host memory, from the forward to the last reader in the backward.
#pragma once

#include <oom/step_emitter.h>

#include <deque>

#include "../policy.h"

namespace oom::offload {

/// Host memory for each kept layer. A layer's results are written once; whoever reads them (replay, backward, a regeneration that passes the layer) finds them on the GPU or has
/// them brought back. On the GPU they are transient slots, at most Policy::result_buffers at a time: from the stage that fills them or waits for their copy to their last user. With one
/// buffer for inputs there is one persistent place for results too.
class AttentionPool {
 public:
  AttentionPool(StepEmitter& emitter, const Policy& policy);

  bool keeps(int layer) const { return policy_.layers.at(layer).keeps_results(); }
  /// A slot for the forward to fill; nothing when the layer is not kept.
  AttentionResults fill(int layer);
  /// Sends what the forward filled to the host.
  void store(int layer);
  /// In the pass over `layer`: lets go what layers up to `last` sent to the host.
  void release(int last, int layer);
  /// The forward is over: what the last layer filled is read next, and stays.
  void end_forward();
  /// The results on the GPU; nothing when the layer is not kept.
  AttentionResults fetch(int layer);
  /// A pass of the backward that has fetched what it reads begins: lets go all but the results of these two layers. Who reads others later has them brought again.
  void keep_only(int layer, int other);
  /// In the pass over `pass_layer`: takes memory for the results of `layer`, which the next pass fetches, where there is some. `in_use`: the pass still reads its own.
  void reserve(int layer, int pass_layer, bool in_use);

 private:
  struct Held {
    int layer;
    RankBuffers slots;
    bool filled;  // or on its way
  };
  int64_t bytes(int layer) const { return emitter_.keep_bytes(layer, emitter_.plan().sequences_per_rank()); }
  bool has_one() const { return policy_.buffers == 1; }
  bool is_full() const { return static_cast<int64_t>(held_.size()) >= policy_.result_buffers(); }
  std::deque<Held>::iterator find(int layer);
  Held& take(int layer, int pass_layer);

  StepEmitter& emitter_;
  const Policy& policy_;
  std::vector<RankBuffers> host_;  // by layer
  RankBuffers place_;              // buffers = 1: of whatever is on the GPU
  std::deque<Held> held_;          // on the GPU, the oldest first
};

}  // namespace oom::offload
