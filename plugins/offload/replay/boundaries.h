/// Replay: where the inputs of layers are. Some are stored, on the host or on the GPU; the others are made again when the backward comes to their layer,
/// by forwards without gradients from the nearest stored one below. That of a layer which retains attention stays on the GPU, whatever the settings say.
#pragma once

#include <map>

#include "../split/decoder.h"

namespace oom::offload {

class Boundaries {
 public:
  Boundaries(StepEmitter& emitter, const Policy& policy, bool training);

  /// Where the forward writes the input of `layer`; of the layer after the last: the input of the head.
  Activation written(int layer) const { return emitter_.all_tokens(gpu_[layer].empty() ? ring_[layer % ring_.size()] : gpu_[layer]); }
  /// Sends the input of `layer` to the host when it is stored there.
  void store(int layer);
  /// The input of `layer` for its backward: layers are asked for in descending order.
  Activation read(int layer, Decoder& decoder);

 private:
  /// A stored input on the GPU.
  Activation stored(int layer);
  void regenerate(int layer, Decoder& decoder);
  bool stays(int layer) const { return layer + static_cast<int>(ring_.size()) > layers_; }

  StepEmitter& emitter_;
  const Policy& policy_;
  const int layers_;
  std::vector<RankBuffers> ring_;          // on the GPU: one is read, one is written, others are on their way; or one for all of it
  std::vector<RankBuffers> gpu_, host_;    // by layer; empty where the input is elsewhere
  std::map<int, RankBuffers> loaded_;      // brought back
  std::map<int, Activation> regenerated_;  // held
  size_t next_load_ = 0;
};

}  // namespace oom::offload
