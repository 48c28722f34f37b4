#include "runtime/unbuilt.h"

#include "base/text.h"

namespace oom::runtime {

void refuse_unbuilt(const Plan& plan, const std::string& path) {
  std::vector<std::string> faults;
  if (!plan.retained_feed_forward.empty()) faults.push_back("state.retained_feed_forward: keeping backward tensors of feed-forwards on the GPU is not built yet; cure: []");
  if (!plan.retained_attention.empty()) faults.push_back("state.retained_attention: keeping backward tensors of attention on the GPU is not built yet; cure: []");
  if (!faults.empty()) throw FileError(cat(path, ": ", base::join(faults, cat("\n", path, ": "))));
}

}  // namespace oom::runtime
