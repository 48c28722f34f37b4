/// Costs to plan with while there is no calibration.
#pragma once

#include "oom/cost_table.h"
#include "oom/plan.h"

namespace oom::runtime {

/// CUDA: the analytic table. CPU device: one of its own, a guess at a rank with some cores: right in what is slow beside what, not in seconds.
CostTable analytic_costs(DeviceKind device);

}  // namespace oom::runtime
