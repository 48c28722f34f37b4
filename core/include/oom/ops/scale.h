/// Scaled copies and sums of activations: residual sums, embedding scales, layer scalars.
///
/// FP32 or BF16 rows with a contiguous last dimension and at most two leading strides. FP32 inside, one rounding. Work goes to the current device and
/// stream. Every result may be one of the operands. Backward of each is another call of these.
#pragma once

#include <ATen/core/Tensor.h>

#include "oom/error.h"

namespace oom::ops {

/// y = factor * x.
OOM_API void scale_out(const at::Tensor& y, const at::Tensor& x, double factor);
/// y = scalar * x, where `scalar` is a one-element tensor on the device, FP32 or BF16.
OOM_API void scale_by_out(const at::Tensor& y, const at::Tensor& x, const at::Tensor& scalar);
/// y = x + factor * addend, one type for all.
OOM_API void add_scaled_out(const at::Tensor& y, const at::Tensor& x, const at::Tensor& addend, double factor = 1.0);
/// Returns x + addend.
OOM_API at::Tensor add_residual(const at::Tensor& x, const at::Tensor& addend);

}  // namespace oom::ops
