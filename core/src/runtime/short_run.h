/// A few steps of a configuration for their times alone: random weights, nothing is written.
#pragma once

#include <string>
#include <vector>

#include "runtime/planner.h"

namespace oom::runtime {

struct ShortRunOptions {
  int warm_up = 1;          ///< steps before those that count; on GPUs as many more as take two seconds: a GPU that was idle is cool, and clocks higher
  int measured = 5;
  bool record_stages = false;
  double doubt = 0;         ///< Session::doubt_costs
};

struct ShortRun {
  PlannedRun planned;       ///< of the short run itself
  double step_seconds = 0;  ///< median from one step's end to the next one's
  std::vector<int64_t> gpu_peak_bytes;
  std::vector<std::vector<StageTime>> stages;  ///< of each measured step, by StageId, when recorded
};

/// Plans and runs the configuration at `config_path` with `overrides`, which the caller made short ("model.layers=4"). Throws BudgetError when it
/// does not fit: short runs obey the same budgets; ConfigError when it has no data to run on.
ShortRun run_briefly(const std::string& config_path, std::vector<std::string> overrides, const ShortRunOptions& options = {});

}  // namespace oom::runtime
