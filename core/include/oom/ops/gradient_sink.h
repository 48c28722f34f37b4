/// Where a parameter's gradient goes.
#pragma once

#include <ATen/core/Tensor.h>

namespace oom::ops {

/// A borrowed tensor that receives one parameter's gradient. FP32 or BF16, contiguous, of the parameter's shape and on its device.
/// Several slices of one gradient are summed in FP32 only where the tensor is FP32.
struct GradientSink {
  at::Tensor tensor;
  /// true: adds to what is there; false: overwrites it (it may be uninitialised).
  bool accumulate = true;
};

}  // namespace oom::ops
