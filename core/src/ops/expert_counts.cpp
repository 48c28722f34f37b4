#include "oom/ops/expert_counts.h"

#include "ops/expert_counts_cuda.h"
#include "ops/router_cuda.h"
#include "ops/rows.h"

namespace oom::ops {

void add_expert_counts(const at::Tensor& counts, const at::Tensor& indices) {
  require_contiguous(indices, at::kInt, counts, "routing indices");
  require_contiguous(counts, at::kLong, counts, "expert counts");
  OOM_CHECK(counts.dim() == 1 && counts.numel() <= kMaxExperts, "expert counts must be [E] with at most ", kMaxExperts, " experts; got ", counts.sizes());
  const int64_t choices = indices.numel();
  if (choices == 0) return;
  int64_t* to = counts.data_ptr<int64_t>();
  const int32_t* from = indices.data_ptr<int32_t>();
  if (on_cuda(counts)) {
    if constexpr (kWithCuda) add_expert_counts_cuda(to, counts.numel(), from, choices, current_stream(counts));
    return;
  }
  for (int64_t i = 0; i < choices; ++i) ++to[from[i]];
}

}  // namespace oom::ops
