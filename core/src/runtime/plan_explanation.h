/// Why a plan: what was tried beside it and lost, and what more memory would buy.
#pragma once

#include <string>
#include <vector>

#include "runtime/planner.h"

namespace oom::runtime {

/// A plan that lost.
struct RunnerUp {
  std::string difference;    ///< what it chooses otherwise, see describe_difference
  std::string why;           ///< "3.2 % slower", "1.2 GiB too many"
  PlanFigures figures;       ///< step_seconds: none where it does not fit
};
/// Of the plans tried beside `run`: what other strategies came to, the `count` fastest that fit, then as many that come nearest to fitting.
std::vector<RunnerUp> runners_up(const PlannedRun& run, size_t count = 4);

/// What planning again with a larger budget comes to.
struct BudgetGain {
  std::string budget;       ///< "one more GiB of each GPU"
  double step_seconds = 0;  ///< predicted
  std::string difference;   ///< of its plan; empty: the same plan
};
/// Plans again with one GiB more for each GPU, and for each NUMA node. Empty for a plan that was stated.
std::vector<BudgetGain> budget_gains(Session& session, const PlannedRun& run);

/// The same as far as it is known without planning again, for no more than a look: of the plans that were tried and that one GiB alone keeps from fitting, the one that
/// lacks least. How fast it would be was not simulated: step_seconds is 0.
std::vector<BudgetGain> known_gains(const PlannedRun& run);

/// What lost, and what more memory would buy, as text.
std::string explain(Session& session, const PlannedRun& run);

}  // namespace oom::runtime
