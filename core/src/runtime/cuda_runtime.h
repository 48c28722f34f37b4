/// The CUDA side of DeviceRuntime: one device a rank, device index = rank.
#pragma once

#include <cuda_runtime_api.h>

#include "oom/stage.h"
#include "runtime/device_runtime.h"

namespace oom::runtime {

/// Enables peer access between all ranks' devices. Throws DeviceError when there are fewer devices than ranks.
std::unique_ptr<DeviceRuntime> make_cuda_runtime(int ranks);

/// The stream of a device's lane, the same for as long as the process runs. Temporaries are allocated on the compute lane's. Any thread.
cudaStream_t lane_stream(int device, Lane lane);

}  // namespace oom::runtime
