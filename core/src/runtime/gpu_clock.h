/// How a GPU's clock falls with the share of time in which it computes.
#pragma once

#include <vector>

#include "oom/cost_table.h"

namespace oom::runtime {

/// Times blocks of BF16 products of 20 ms with pauses between them, one second for each of a few shares. Takes five seconds and 200 MiB of the GPU. Throws DeviceError.
std::vector<ClockPoint> measure_gpu_clock(int gpu);

}  // namespace oom::runtime
