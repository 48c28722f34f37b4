/// What one and two units of a model say of all of it.
#pragma once

#include <oom/selector.h>

#include <optional>

namespace oom::selector {

/// Times and memory of a whole model, from short runs.
struct Extrapolation {
  double fixed_seconds = 0;            ///< embedding, head, ends of the pipeline
  double seconds_per_layer = 0;
  double step_seconds = 0;             ///< of all layers
  std::vector<int64_t> gpu_peak_bytes; ///< of all layers, by rank
};

/// A line through two short runs; `two` is empty when `one` had all layers already. A run of more layers that was not slower counts as equal.
Extrapolation extrapolate(const ShortRuns::Result& one, const std::optional<ShortRuns::Result>& two, int unit_layers, int layers);

}  // namespace oom::selector
