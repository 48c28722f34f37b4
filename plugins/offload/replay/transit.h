/// When memory is taken for inputs and results on their way from the host, and when that of those on their way to it is let go: a copy overlaps with the passes beside it, but nothing that
/// a later pass reads is there beside the workspace of grouped attention.
#pragma once

#include <algorithm>

#include "boundaries.h"

namespace oom::offload {

class Transit {
 public:
  Transit(StepEmitter& emitter, const Policy& policy, Boundaries& boundaries, AttentionPool& pool);

  // Called while a pass over a layer is emitted, in the order given here.
  void begin_forward(int layer);
  void before_result(int layer);
  /// After the last layer.
  void end_forward();

  /// A pass of the backward, which goes over layers as regeneration and backward do: its own input and results have their memory.
  void begin_pass();
  /// Attention's workspace and results are gone.
  void mixer_done();

 private:
  struct Pass {
    int layer;
    bool regenerates;  // or runs backward
    int input;         // the stored input that it reads, if that is on the host, or -1
  };
  /// Of the pass after this one; after the last: its own.
  int next_layer() const { return passes_[std::min(static_cast<size_t>(pass_) + 1, passes_.size() - 1)].layer; }
  void reserve(bool in_use);

  Boundaries& boundaries_;
  AttentionPool& pool_;
  std::vector<bool> groups_heads_;  // by layer
  std::vector<Pass> passes_;        // of the backward
  int pass_ = -1;
};

}  // namespace oom::offload
