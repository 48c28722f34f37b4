/// The CUDA side of DeviceRuntime: one device a rank, device index = rank.
#pragma once

#include "runtime/device_runtime.h"

namespace oom::runtime {

/// Enables peer access between all ranks' devices. Throws DeviceError when there are fewer devices than ranks.
std::unique_ptr<DeviceRuntime> make_cuda_runtime(int ranks);

}  // namespace oom::runtime
