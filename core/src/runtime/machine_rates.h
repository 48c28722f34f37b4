/// Measures what a machine's shared resources give: the part of a calibration that no model matters to.
#pragma once

#include <vector>

#include "hardware/core_plan.h"
#include "oom/cost_table.h"
#include "runtime/admission.h"

namespace oom::runtime {

/// Parameters a second of the pools of one NUMA node.
struct PoolRates {
  double update_parameters = 0;
  double convert_parameters = 0;
};
/// AdamW and conversion on every node, one after another: its own threads, as a run places them, on memory of that node.
std::vector<PoolRates> measure_pools(const hardware::CorePlan& cores);

/// Rates of links, host memory and the CPU's optimizer, alone and under load; where NUMA nodes differ, those of the slowest; those of GEMMs and kernels stay analytic (kinds of stages are fitted
/// instead), but for how a GPU's clock falls with the share of time in which it computes. Takes a few seconds and at most 2 GiB. Throws DeviceError.
CostTable measure_machine_rates(const Machine& machine, DeviceKind device, int ranks);

}  // namespace oom::runtime
