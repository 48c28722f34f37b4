/// When nothing fits: which changes to the configuration would make it fit.
#pragma once

#include "runtime/plan_candidate.h"
#include "runtime/planner.h"

namespace oom::runtime {

/// Tries changes in a fixed order, dearest to the user last, each on top of those before; drops those that turn out not to be needed. `refused` does
/// not fit.
NearestPlan find_nearest(Session& session, const PlanCandidate& refused, const Budgets& budgets);

}  // namespace oom::runtime
