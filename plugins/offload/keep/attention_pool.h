/// Keep: attention results in pinned host memory, from the forward to the last reader in the backward.
#pragma once

#include <oom/step_emitter.h>

#include "../policy.h"

namespace oom::offload {

/// Host memory for each kept layer, and a few GPU buffers through which results travel both ways. A layer's results are written once; whoever reads them
/// (replay, backward, a regeneration that passes through the layer) finds them in a buffer or has them brought back.
class AttentionPool {
 public:
  AttentionPool(StepEmitter& emitter, const Policy& policy);

  bool keeps(int layer) const { return policy_.layers.at(layer).keeps_results(); }
  /// GPU buffers for the forward to fill; nothing when the layer is not kept.
  AttentionResults fill(int layer);
  /// Sends what the forward filled to the host.
  void store(int layer);
  /// The results on the GPU; nothing when the layer is not kept.
  AttentionResults fetch(int layer);

 private:
  AttentionResults staged(size_t slot) const { return {staging_[slot], 0, emitter_.plan().sequences_per_rank()}; }
  size_t take(int layer);

  StepEmitter& emitter_;
  const Policy& policy_;
  std::vector<RankBuffers> host_;     // by layer
  std::vector<RankBuffers> staging_;  // on the GPU
  std::vector<int> held_;             // by staging buffer: the layer whose results are in it
  size_t next_ = 0;
};

}  // namespace oom::offload
