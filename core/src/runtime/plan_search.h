/// The choices that a configuration leaves open for one expert strategy and one activation strategy, searched for the shortest predicted step that fits.
///
/// From the plan as configured, each kind of choice in turn is varied about the best plan so far, and every variation takes what GPU memory it leaves
/// for resident layers: where state lives, working weights cached or made, how many updates wait, routing chunks, activation policies, retained layers,
/// which layers are resident. What the configuration states stays. Plans that do not fit are not simulated.
#pragma once

#include <string>
#include <vector>

#include "runtime/plan_judge.h"

namespace oom::runtime {

/// Candidates closer than this in predicted time count as equally fast: of those the one with most GPU memory left is taken,
/// then one with cached weights, then that with most host memory left.
inline constexpr double kTie = 0.005;

struct Trial {
  Plan plan;
  PlanFigures figures;
  bool fits = false;
};

struct SearchResult {
  Trial best;                 ///< the smallest found when nothing fits
  std::vector<Trial> others;  ///< in the order in which they were tried
};

/// Searches from `plan`, which its strategies have configured.
SearchResult search_plan(Session& session, const Plan& plan, const Budgets& budgets);

/// "4 layers resident, ordinary streamed, weights cached".
std::string describe_state(const Plan& plan);
/// What `plan` chooses otherwise than `other`, key by key with its own values: "resident 4 layers, ep.routing_chunk 65536"; empty when nothing.
std::string describe_difference(const Plan& plan, const Plan& other);

}  // namespace oom::runtime
