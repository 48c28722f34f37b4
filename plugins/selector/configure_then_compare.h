/// Section 6 of the paper: every path was configured by itself; now each runs one and two repeating units of the model, both times extrapolate to the
/// full depth, and the path that is faster by what was measured is installed.
#pragma once

#include <oom/selector.h>

namespace oom::selector {

class ConfigureThenCompare final : public Selector {
 public:
  explicit ConfigureThenCompare(const HostServices& services);
  /// One candidate that fits is taken without a run. Without runs, or where no run succeeds, the shortest prediction decides.
  size_t select(const std::vector<Candidate>& candidates, ShortRuns* runs, std::string& evidence) const override;
};

}  // namespace oom::selector
