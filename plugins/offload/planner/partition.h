/// Partitions: how operators are cut. A short list for a geometry and a workload, from whole to small.
#pragma once

#include <oom/model.h>
#include <oom/plan.h>

#include "../policy.h"

namespace oom::offload {

/// Policies that differ from `whole` in sizes of slices; those that the user gave stay. Coarse before fine: a later one takes less memory at once and a
/// little more time.
std::vector<Policy> partitions(const SettingsTable& given, const ModelDescription& model, const Plan& plan, const Policy& whole);

}  // namespace oom::offload
