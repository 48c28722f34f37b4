#include "only_candidate.h"

namespace oom::selector {

OnlyCandidate::OnlyCandidate(const HostServices&) {}

size_t OnlyCandidate::select(const std::vector<Candidate>& candidates, std::string& evidence) const {
  size_t best = candidates.size();
  size_t fitting = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (!candidates[i].fits) continue;
    ++fitting;
    if (best == candidates.size() || candidates[i].predicted_step_seconds < candidates[best].predicted_step_seconds) best = i;
  }
  OOM_CHECK(best < candidates.size(), "no candidate fits");
  evidence = cat(candidates[best].plan.experts, " with ", candidates[best].plan.activations, ": ",
                 fitting == 1 ? std::string("the only candidate that fits") : cat("the shortest predicted step of ", fitting, " candidates that fit"));
  return best;
}

}  // namespace oom::selector
