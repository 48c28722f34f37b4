/// Replay: where the inputs of layers are. Some are stored, on the host or on the GPU; the others are made again when the backward comes to their layer,
/// by forwards without gradients from the nearest stored one below. That of a layer which retains attention stays on the GPU, whatever the settings say.
#pragma once

#include <deque>
#include <map>

#include "../split/decoder.h"

namespace oom::offload {

class Boundaries {
 public:
  Boundaries(StepEmitter& emitter, const Policy& policy, bool training);

  // Forward.
  /// Where the forward writes the input of `layer`; of the layer after the last: the input of the head.
  Activation written(int layer);
  /// Sends the input of `layer` to the host when it is stored there.
  void store(int layer);
  /// Before the result of `layer` is written: lets go inputs on their way to the host until there are `buffers` with it; `all`: all of them.
  void make_room(int layer, bool all);
  void end_forward();

  // Backward.
  bool regenerates(int layer) const { return policy_.layers[layer].regenerates() && !stays(layer); }
  /// The stored input from which that of `layer` is made.
  int source(int layer) const;
  bool is_on_host(int layer) const { return !host_[layer].empty(); }
  /// In the pass over `pass_layer`: takes memory for the input of `layer`, unless it has some. Returns false when there are `buffers` inputs.
  bool reserve(int layer, int pass_layer);
  /// The input of `layer` for its backward: layers are asked for in descending order.
  Activation read(int layer, Decoder& decoder);
  /// The backward of `layer` begins: lets go other inputs that were brought back. Who reads them later has them brought again.
  void let_go_others(int layer);
  /// The backward of `layer` has read its input.
  void done(int layer);

 private:
  struct Loaded {
    RankBuffers slots;
    bool filled;  // or on its way
  };
  /// A stored input on the GPU.
  Activation stored(int layer);
  void regenerate(int layer, Decoder& decoder);
  /// The last inputs wait for their backward on the GPU, if they need not do so beside grouped attention of a layer above.
  bool stays(int layer) const { return layer >= first_staying_ && layer < layers_; }
  bool has_one() const { return policy_.buffers == 1; }

  StepEmitter& emitter_;
  const Policy& policy_;
  const int layers_;
  const int first_staying_;
  RankBuffers ring_;                           // buffers = 1: the place of every input
  std::vector<RankBuffers> forward_;           // by layer: slots of the forward
  std::vector<RankBuffers> gpu_, host_;        // by layer; empty where the input is elsewhere
  std::deque<int> leaving_;                    // layers whose inputs are on their way to the host
  std::map<int, Loaded> loaded_;               // brought back
  std::map<int, Activation> regenerated_;      // held
};

}  // namespace oom::offload
