/// The local planner: policies worth judging for a plan. README.md, 'Planner'.
#pragma once

#include <oom/planning_context.h>

#include "../policy.h"

namespace oom::offload {

/// Tables for a plan whose settings resolved to `plan`: the fastest that a search over partitions and layers finds within the budgets. Keys that the user gave stay
/// as they are.
std::vector<std::map<std::string, std::string>> proposals(const SettingsTable& given, const ModelDescription& model, const Plan& plan, const PlanningContext& context);

}  // namespace oom::offload
