/// Where state lives, when the configuration leaves it open: how much of it on the GPUs, and whether the host keeps working weights of the rest.
#pragma once

#include <string>

#include "runtime/plan_candidate.h"

namespace oom::runtime {

/// Candidates closer than this in predicted time count as equally fast.
inline constexpr double kTie = 0.005;

/// Judges `plan`, configured, with its state placed in the ways that [state] leaves open: nothing on the GPUs, and the most layers that fit them, with
/// and without ordinary parameters; working weights cached on the host, or made at each delivery where the host's budget or time asks for it. Returns
/// the fastest that fits, of equally fast ones that with more GPU memory left; the smallest when none fits. `tried`: a line for each that fits.
PlanCandidate place_state(Session& session, const Plan& plan, const Budgets& budgets, std::vector<std::string>& tried);

/// "4 layers resident, ordinary streamed, weights cached": what is chosen here.
std::string describe_state(const Plan& plan);

}  // namespace oom::runtime
