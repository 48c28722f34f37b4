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
  std::string why_not;              ///< when it does not fit, or cannot be configured
  double predicted_step_seconds = 0;
  std::vector<int64_t> gpu_peak_bytes;   ///< predicted, by rank
  std::vector<int64_t> host_peak_bytes;  ///< predicted, by NUMA node
  std::vector<int64_t> gpu_limit_bytes;  ///< most that a peak may be, by rank; empty: GPUs have no budget of their own
  std::string summary;                   ///< the plan in a few words
};

/// How many of some layers have what a plan gives to sets of layers.
struct LayerMix {
  int resident = 0;
  int retained_feed_forward = 0;
  int retained_attention = 0;
  int deferred = 0;  ///< updates that wait for the next step
  friend bool operator==(const LayerMix&, const LayerMix&) = default;
};

/// Runs a candidate's way of working on fewer layers of the model: same workload, same budgets.
class OOM_API ShortRuns {
 public:
  struct Result {
    double step_seconds = 0;              ///< median of five steps after one to warm up
    std::vector<int64_t> gpu_peak_bytes;  ///< measured, by rank
  };
  virtual ~ShortRuns();
  /// Layers of the model, and of its repeating unit: at least four, whole patterns; all layers when there are fewer than two units.
  virtual int layers() const = 0;
  virtual int unit_layers() const = 0;
  /// Runs `layers` layers under the candidate, of which as many as `mix` says are resident, retained and so on; which ones follows where the candidate's own lie in
  /// the depth of the model. Seconds to minutes. Throws BudgetError when the short run does not fit, and what a run throws.
  virtual Result run(size_t candidate, int layers, const LayerMix& mix) = 0;
};

class OOM_API Selector : public Plugin {
 public:
  ~Selector() override;
  /// Returns the index of the candidate to install; `evidence` receives the reasons in a line or a table. At least one candidate fits. `runs` is null
  /// where nothing may be run: then predictions decide.
  virtual size_t select(const std::vector<Candidate>& candidates, ShortRuns* runs, std::string& evidence) const = 0;
};

}  // namespace abi_1
}  // namespace oom
