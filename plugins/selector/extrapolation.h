/// What one and two units of a model say of all of it.
#pragma once

#include <oom/selector.h>

#include <optional>

namespace oom::selector {

/// A short run.
struct Sample {
  int layers = 0;
  LayerMix mix;
  ShortRuns::Result result;
};

/// Times and memory of a whole model, from short runs.
struct Extrapolation {
  double fixed_seconds = 0;            ///< embedding, head, ends of the pipeline
  double seconds_per_layer = 0;        ///< of all layers, whatever their kinds
  double step_seconds = 0;             ///< of all layers
  std::vector<int64_t> gpu_peak_bytes; ///< of all layers, by rank
};

/// Kinds of layers that have a cost of their own.
inline constexpr int LayerMix::*kLayerKinds[] = {&LayerMix::resident, &LayerMix::retained_feed_forward, &LayerMix::retained_attention};

/// The mix of a whole model's plan.
LayerMix mix_of(const Plan& plan);

/// Mixes to run a plan on one and two units with, of `layers` layers and `whole` in all. Both have the same share, so that their difference is one unit more of the same; where that is
/// not quite the whole's, runs of two units with a little more of one kind, beyond the whole's share, tell what that kind costs.
struct Samples {
  LayerMix one, two;
  std::vector<LayerMix> more;  ///< two units too
};
Samples samples(const LayerMix& whole, int unit_layers, int layers);

/// A line through two short runs, corrected for each kind of layer by the runs that have more of it. Exact where layers cost by kind. `two` is empty when `one` had all layers
/// already. A run of more layers that was not slower counts as equal.
Extrapolation extrapolate(const Sample& one, const std::optional<Sample>& two, const std::vector<Sample>& more, const LayerMix& whole, int layers);

}  // namespace oom::selector
