/// DeviceTransfer over CUDA streams.
#pragma once

#include "comm/device_transfer.h"

namespace oom::comm {

/// Touches no device until the first call of one of its functions, so that plans can be priced without a GPU.
std::unique_ptr<DeviceTransfer> make_cuda_transfer();

}  // namespace oom::comm
