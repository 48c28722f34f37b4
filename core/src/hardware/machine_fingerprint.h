/// Says which machine this is, in one line: costs and plans made on another one may not hold here.
#pragma once

#include <string>

#include "hardware/gpu.h"
#include "hardware/topology.h"

namespace oom::hardware {

/// "2 x NVIDIA H200 (139 GiB), 32 cores of Intel(R) Xeon(R) Platinum 8480C, 1 NUMA node". Without GPUs they are left out: what the CPU device depends on.
std::string machine_fingerprint(const GpuList& gpus, const Topology& topology);

}  // namespace oom::hardware
