/// A dynamic program over layers: the fastest choice of boundaries and kept results under limits of bytes, by the model of step_costs.h.
#pragma once

#include <limits>
#include <vector>

#include "step_costs.h"

namespace oom::offload {

/// What may be chosen of one layer.
struct LayerChoices {
  bool host = true, gpu = true, regenerate = true;
  bool discard = true, keep = true;  ///< attention results
};

struct SearchSpace {
  std::vector<LayerChoices> layers;
  int64_t buffers = 3;
  int64_t regenerate_cap = 1;
  int longest_run = 8;  ///< regenerated inputs in a row
  /// Bytes of Price that a plan may take.
  int64_t gpu_bytes = std::numeric_limits<int64_t>::max();
  int64_t host_bytes = std::numeric_limits<int64_t>::max();
  int64_t shared_bytes = std::numeric_limits<int64_t>::max();  ///< both together, where device memory is the host's
  double most_seconds = std::numeric_limits<double>::infinity();  ///< slower plans are of no interest
  /// Partial plans kept a layer. What the best must be found among is thinned only beyond that; 0: never.
  size_t most_labels = 0;
};

struct Found {
  Policy policy;  ///< layers, buffers and regenerate_cap; sizes of slices are the caller's
  Price price;
};

/// Returns the fastest plan within the limits and, after it, a few more that are slower and take less of the GPU or of the host; nothing when none fits.
/// `priced`: receives how many partial plans were priced.
std::vector<Found> search_layers(const StepCosts& costs, const SearchSpace& space, int64_t* priced = nullptr);

}  // namespace oom::offload
