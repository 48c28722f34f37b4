/// Which layers' expert shards live on their owners' GPUs, as a configuration says it.
#pragma once

#include <optional>
#include <vector>

#include "config/config.h"
#include "oom/model.h"
#include "oom/plan.h"

namespace oom::runtime {

/// Positions of `count` resident layers among `layers`, ascending. contiguous: the first ones. interleaved: 0, 1 and
/// floor(2 + (layers - 2)(i + 1/2) / (count - 2)), i = 0 .. count - 3: between them streamed layers have time to arrive and to be updated.
std::vector<int> place_resident(int count, int layers, config::Placement placement);

/// Layers that have routed experts, ascending.
std::vector<int> routed_layers(const ModelDescription& model);

/// Whether the table of the plan's expert strategy has `retain` and `retain_attention`. They leave the lists of layers to the plan's own.
bool chooses_retained(const Plan& plan);

/// What [state] resident says; nothing: auto. A count is one of layers with routed experts. Throws ConfigError for layers that are not there.
std::optional<std::vector<int>> stated_residency(const config::Config& config, const ModelDescription& model);

}  // namespace oom::runtime
