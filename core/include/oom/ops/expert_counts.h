/// How many tokens chose each expert.
///
/// Work goes to the current device and stream; nothing is allocated and nothing synchronises. Whole numbers, so the result does not depend on any order.
#pragma once

#include <ATen/core/Tensor.h>

#include "oom/error.h"

namespace oom::ops {

/// Adds the choices in `indices`, int32 of any shape with values from 0 to E - 1, to `counts`, int64 [E], on the same device. Both contiguous; E <= 1024.
OOM_API void add_expert_counts(const at::Tensor& counts, const at::Tensor& indices);

}  // namespace oom::ops
