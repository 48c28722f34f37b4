/// What operators ask of the device that runs them.
#pragma once

#include <ATen/core/Tensor.h>

namespace oom::ops {

/// Compute capability of the tensor's device, 90 for sm_90; 0 for the CPU device.
int compute_capability_of(const at::Tensor& tensor);

}  // namespace oom::ops
