/// Measures what a machine's shared resources give: the part of a calibration that no model matters to.
#pragma once

#include "oom/cost_table.h"
#include "runtime/admission.h"

namespace oom::runtime {

/// Rates of links, host memory and the CPU's optimizer, alone and under load; those of GEMMs and kernels stay analytic (kinds of stages are fitted
/// instead). Takes a few seconds and at most 2 GiB. Throws DeviceError.
CostTable measure_machine_rates(const Machine& machine, DeviceKind device, int ranks);

}  // namespace oom::runtime
