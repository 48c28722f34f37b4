#include "runtime/temporaries_cap.h"

#include <algorithm>

#include "base/text.h"
#include "oom/error.h"
#include "oom/log.h"

namespace oom::runtime {

int64_t temporaries_cap(const TemporariesBudget& gpu, int rank) {
  const int64_t left = gpu.budget - gpu.headroom - gpu.arena - gpu.fixed;
  const int64_t cap = std::max(left, std::min(gpu.planned, left + gpu.headroom));
  log_info("memory: gpu ", rank, ": arena ", base::format_bytes(gpu.arena), ", context and libraries ", base::format_bytes(gpu.fixed), ", at most ", base::format_bytes(cap),
           " for temporaries, which need ", base::format_bytes(gpu.planned));
  if (cap <= 0 || cap < gpu.planned) {
    throw BudgetError(cat("gpu ", rank, ": context and libraries take ", base::format_bytes(gpu.fixed), " and the arena ", base::format_bytes(gpu.arena), " of budget.gpu = ",
                          base::format_bytes(gpu.budget), ": ", base::format_bytes(std::max<int64_t>(cap, 0)), " are left for temporaries, which need ", base::format_bytes(gpu.planned),
                          ". Raise budget.gpu or budget.headroom (less is then planned for), or end other programs on this GPU"));
  }
  if (cap > left) log_warn("memory: gpu ", rank, ": context and libraries take ", base::format_bytes(gpu.fixed), "; ", base::format_bytes(cap - left), " of budget.headroom are used");
  return cap;
}

}  // namespace oom::runtime
