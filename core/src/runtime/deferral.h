/// Which layers' updates wait for the next step's forward.
#pragma once

#include <vector>

#include "oom/model.h"
#include "oom/plan.h"

namespace oom::runtime {

/// Layers among which Plan::deferred_layers counts: those with experts on the host; every layer where no experts are.
std::vector<int> deferrable_layers(const Plan& plan, const ModelDescription& model);

/// Plan::deferred_layers of them, ascending, spread evenly: between two layers whose updates wait the host's threads update one that does not, so that
/// they have work all through the backward and all through the next forward. Waiting layers in a row would leave them idle in the one and hold up
/// the other.
std::vector<int> waiting_layers(const Plan& plan, const ModelDescription& model);

}  // namespace oom::runtime
