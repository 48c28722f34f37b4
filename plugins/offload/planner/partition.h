/// Partitions: how operators are cut. A few coarse ones, from whole to small, and from any of them the ones beside it.
#pragma once

#include <oom/model.h>
#include <oom/plan.h>

#include "../policy.h"

namespace oom::offload {

/// Policies that differ from `whole` in sizes of slices; those that the user gave stay. Coarse before fine, all sizes together: a later one takes less memory at
/// once and a little more time.
std::vector<Policy> partitions(const SettingsTable& given, const ModelDescription& model, const Plan& plan, const Policy& whole);

/// Policies that differ from `policy` in one size, which is the next smaller or larger of about a factor of two up to that of `whole`; those that the user gave stay.
std::vector<Policy> neighbours(const SettingsTable& given, const ModelDescription& model, const Plan& plan, const Policy& whole, const Policy& policy);

/// Tokens of a slice where `tokens` are cut into about so many.
int64_t slice(int64_t tokens, int64_t slices);

/// True when both cut every operator alike: sizes beyond what there is to cut are equal.
bool cuts_alike(const Plan& plan, const Policy& one, const Policy& other);

}  // namespace oom::offload
