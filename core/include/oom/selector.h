/// Chooses the plan to install out of the candidates that were configured for a workload and its budgets.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "oom/plan.h"
#include "oom/plugin.h"

namespace oom {
inline namespace abi_1 {

/// A configured plan, what accounting and simulation say of it, and whether it fits.
struct Candidate {
  Plan plan;
  bool fits = false;
  std::string why_not;              ///< when it does not fit
  double predicted_step_seconds = 0;
};

class OOM_API Selector : public Plugin {
 public:
  ~Selector() override;
  /// Returns the index of the candidate to install; `evidence` receives the reasons in a line or a table. At least one candidate fits.
  virtual size_t select(const std::vector<Candidate>& candidates, std::string& evidence) const = 0;
};

}  // namespace abi_1
}  // namespace oom
