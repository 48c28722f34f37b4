/// The model that plans are searched with: what each layer of a step costs by what may be chosen of it. Seconds and bytes are those of one rank.
///
/// Choices are those of Policy::layers, `buffers` and `regenerate_cap`; how operators are cut is settled (a partition). A step is a chain of slots, one a layer in the
/// forward, and in the backward one a layer and one for each layer that a regeneration traverses. A slot lasts as long as the longest of
///   its work on the compute lane;
///   what comes in for the slot after it: weights, stored input, kept results (windows let one layer be brought ahead);
///   gradients of the layer before that leave;
///   forward: inputs and results on their way to the host, beyond what may still be under way because it has a buffer.
/// The accountant and the simulator of the real program judge what is found; this only has to rank.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "../policy.h"

namespace oom::offload {

/// A pass of the compute lane over a layer.
struct Work {
  double seconds = 0;
  int64_t bytes = 0;  ///< most that lives at once on the GPU, without persistent memory, what is carried, and regenerated inputs
  friend bool operator==(const Work&, const Work&) = default;
};

struct LayerCosts {
  /// By whether the layer's attention results are kept. `traverse`: forward again, on the way to a regenerated input.
  struct Passes {
    Work forward, backward, traverse;
    friend bool operator==(const Passes&, const Passes&) = default;
  };
  std::array<Passes, 2> passes;
  double weights_seconds = 0;     ///< delivery of the layer's parameters
  double gradients_seconds = 0;   ///< their way out
  double result_out_seconds = 0;  ///< attention results, to the host and back
  double result_in_seconds = 0;
  int64_t result_bytes = 0;       ///< 0: none to keep
  int64_t carried_bytes = 0;      ///< on the GPU while this layer runs for layers up to it, from forward to backward: routing, what is retained
  friend bool operator==(const LayerCosts&, const LayerCosts&) = default;
};

struct StepCosts {
  std::vector<LayerCosts> layers;
  Work head;  ///< with what is carried
  double input_out_seconds = 0;  ///< a layer's input, to the host and back
  double input_in_seconds = 0;
  int64_t input_bytes = 0;

  int count() const { return static_cast<int>(layers.size()); }
  int64_t largest_result_bytes() const;
  /// Of the fastest plan when bytes are no object: every input on the GPU or hidden behind work, every result kept where that is faster.
  double least_seconds() const;
  friend bool operator==(const StepCosts&, const StepCosts&) = default;
};

/// What choices take: a plan without stored inputs and kept results takes the rest.
struct Price {
  double seconds = 0;
  int64_t gpu_bytes = 0;   ///< inputs on the GPU, buffers of results, and the most that passes need at once; without the ring of inputs
  int64_t host_bytes = 0;
};

/// Prices a policy; microseconds.
Price price(const StepCosts& costs, const Policy& policy);

/// True for the last few layers, whose inputs are still in the ring of buffers when the backward begins.
inline bool stays(int layer, int layers, int64_t buffers) { return layer + buffers > layers; }
/// Where the input of a layer really is.
Boundary place_of(const Policy& policy, int layer);

}  // namespace oom::offload
