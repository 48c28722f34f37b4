/// Reads a partition's costs off real programs: the planner knows no operator, no expert strategy and no rate of its own.
#pragma once

#include <oom/model.h>
#include <oom/planning_context.h>

#include "layerwise_search.h"

namespace oom::offload {

struct Measured {
  StepCosts costs;
  /// What the budgets leave to a plan, for the fields of SearchSpace: bytes of Price. Below 0: nothing fits.
  int64_t gpu_bytes = 0, host_bytes = 0, shared_bytes = 0;
  friend bool operator==(const Measured&, const Measured&) = default;
};

/// Measures `plan` under the sizes and buffers of `partition`, for `choices` of each layer. Emits one program, or a few where there are too few layers of a kind
/// to show every choice at once.
Measured measure(const ModelDescription& model, const Plan& plan, const Policy& partition, const std::vector<LayerChoices>& choices, const PlanningContext& context);

}  // namespace oom::offload
