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

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "../policy.h"

namespace oom::offload {

/// A pass of the compute lane over a layer.
struct Work {
  double seconds = 0;
  int64_t bytes = 0;  ///< most that lives at once on the GPU, without persistent memory, what is carried, layer inputs and kept results
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
  bool groups_heads = false;      ///< attention goes by groups of heads: inputs and results of other layers are not on the GPU beside it
  friend bool operator==(const LayerCosts&, const LayerCosts&) = default;
};

/// Stored inputs that are on the GPU during the backward of a layer or a traversal for its input: that which it reads or is made from, and those of passes after it, as many as buffers allow and down to the next
/// grouped attention, beside whose backward there are none but its own. Built up layer by layer.
struct ComingInputs {
  bool source = false;         ///< the layer's own or that from which it is regenerated is one of them
  bool source_groups = false;  ///< grouped attention in layers from the source to the one below this
  int64_t below = 0;           ///< those of passes after the source's backward

  /// Of the layer above one with `lower`; of layer 0: null. `groups`: of the layer below.
  static ComingInputs above(const ComingInputs* lower, bool groups, Boundary boundary) {
    if (boundary == Boundary::kRegenerate) return {lower->source, lower->source_groups || groups, lower->below};
    return {boundary == Boundary::kHost, false, lower ? lower->from(groups) : 0};
  }
  /// From the first read of the layer's input on. `groups`: of the layer.
  int64_t from(bool groups) const { return source + (source_groups || groups ? 0 : below); }
  /// Inputs during a pass of the backward. `held`: regenerated ones, the layer's own among them.
  int64_t during_backward(bool groups, int64_t held, int64_t buffers) const {
    if (buffers == 1) return 1 + held;
    if (groups) return held > 0 ? held : source;
    return std::min(buffers, from(false)) + held;
  }
  int64_t during_traversal(bool groups, int64_t buffers) const { return buffers == 1 ? 1 : std::min(buffers, from(groups)); }
};

/// What may be on the GPU beside the backward of a layer.
struct Beside {
  ComingInputs coming;
  int run = 0;                 ///< its input is regenerated from that of so many layers below; 0: stored
  int64_t results_below = 0;   ///< bytes of the kept results of the layer below, if its backward is next
  int64_t source_results = 0;  ///< of the layer where the next traversal begins
};

struct StepCosts {
  std::vector<LayerCosts> layers;
  Work head;  ///< with what is carried
  double input_out_seconds = 0;  ///< a layer's input, to the host and back
  double input_in_seconds = 0;
  int64_t input_bytes = 0;

  int count() const { return static_cast<int>(layers.size()); }
  /// Of the place that results have where there is one for inputs.
  int64_t largest_result_bytes() const;
  /// True for the last few layers, whose inputs are still on the GPU when the backward begins.
  bool stays(int layer, int64_t buffers) const;
  /// Where a layer's input really is, and whether it goes to the host and comes back.
  Boundary place(const Policy& policy, int layer) const;
  bool leaves(const Policy& policy, int layer) const;
  /// Bytes that live during a pass. `keeps`: the layer's results are kept.
  int64_t forward_bytes(int layer, bool keeps, bool keeps_below, int64_t buffers) const;
  int64_t backward_bytes(int layer, bool keeps, const Beside& beside, int64_t buffers, int64_t cap) const;
  /// Without what is carried, which is that of the layer whose input is wanted, and layer inputs.
  int64_t traverse_bytes(int layer, bool keeps, int64_t buffers) const;
  int64_t head_bytes(bool keeps_last, int64_t buffers) const;
  /// Of the fastest plan when bytes are no object: every input on the GPU or hidden behind work, every result kept where that is faster.
  double least_seconds() const;
  friend bool operator==(const StepCosts&, const StepCosts&) = default;
};

/// What choices take: a plan without stored inputs and kept results takes the rest.
struct Price {
  double seconds = 0;
  int64_t gpu_bytes = 0;   ///< inputs stored on the GPU, and the most that passes need at once
  int64_t host_bytes = 0;
};

/// Prices a policy; microseconds.
Price price(const StepCosts& costs, const Policy& policy);

/// StepCosts::stays before costs are known: some of these do not stay beside grouped attention of a layer above.
inline bool stays(int layer, int layers, int64_t buffers) { return layer >= first_staying(layers, buffers, [](int) { return false; }); }

}  // namespace oom::offload
