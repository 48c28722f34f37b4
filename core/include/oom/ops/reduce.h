/// Sums of whole tensors in fixed orders, accumulation and conversion of buffers.
///
/// Operands are contiguous, FP32 or BF16, of any shape. The order of every sum depends on the shape alone: results repeat bit for bit on one device.
/// Work goes to the current device and stream.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "oom/error.h"

namespace oom::ops {

/// Adds the sum of squares of `x` to `total` (FP64, one element, on x's device). Squares and sums are FP64 and cannot overflow, so the total is finite
/// exactly when every element is: one number for clipping and for the finite check.
OOM_API void add_sum_of_squares(const at::Tensor& total, const at::Tensor& x);
/// Adds the sum of `x` to `total` likewise (losses).
OOM_API void add_sum(const at::Tensor& total, const at::Tensor& x);

/// destination += source, FP32 destination, source FP32 or BF16.
OOM_API void accumulate(const at::Tensor& destination, const at::Tensor& source);
/// out = sum of `partials` in their order in FP32, rounded once to out's type. Partials share sizes and type; out may be one of them.
OOM_API void sum_partials(const at::Tensor& out, std::span<const at::Tensor> partials);
/// Copies `source` to `destination`, of either type each, rounding to nearest even.
OOM_API void convert(const at::Tensor& destination, const at::Tensor& source);
/// Fills with NaN (integers: the smallest value), so that reading what nobody wrote shows.
OOM_API void poison(const at::Tensor& tensor);

}  // namespace oom::ops
