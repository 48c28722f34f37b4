/// Takes the candidate that fits and whose predicted step is shortest. Nothing is measured: with one candidate there is nothing to compare.
#pragma once

#include <oom/selector.h>

namespace oom::selector {

class OnlyCandidate final : public Selector {
 public:
  explicit OnlyCandidate(const HostServices& services);
  size_t select(const std::vector<Candidate>& candidates, std::string& evidence) const override;
};

}  // namespace oom::selector
