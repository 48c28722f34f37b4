/// CUDA launch of oom/ops/expert_counts.h.
#pragma once

#include "ops/element.h"

namespace oom::ops {

void add_expert_counts_cuda(int64_t* counts, int64_t experts, const int32_t* indices, int64_t choices, Stream stream);

}  // namespace oom::ops
