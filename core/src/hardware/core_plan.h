/// Which processor runs what: one explicit map for the whole process.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hardware/topology.h"

namespace oom::hardware {

struct CorePlanRequest {
  std::vector<int> node_of_rank;     ///< the NUMA node near each rank's GPU (Topology's numbering)
  std::optional<double> cpu_quota;   ///< HostLimits::cpu_quota: fewer pool threads than cores when it is less
};

/// All numbers are the operating system's, one hardware thread a core unless cores run out. Lists are never empty.
struct CorePlan {
  struct Node {
    std::vector<int> prepare;  ///< pool that makes working weights: one pinned thread each
    std::vector<int> update;   ///< pool of the optimizer: one pinned thread each
    bool shared = false;       ///< too few cores: prepare and update use the same ones
  };
  std::vector<std::vector<int>> rank_cpus;  ///< where each rank's thread may run: a core of its own when there are enough
  std::vector<Node> nodes;                  ///< one for each node of the topology; a node without cores borrows those of the nearest one
  std::vector<int> helper_cpus;             ///< for everything else: waiters, data, log, NCCL's own threads

  /// Returns the map as lines of text, for `oom doctor` and the log.
  std::string describe() const;
};

/// Divides each node's cores: one for each rank near it, one in sixteen (at least one from eight cores on) for helpers, a quarter of the
/// rest for preparing and the others for updating. Below four cores a node is shared by all of its users.
CorePlan plan_cores(const Topology& topology, const CorePlanRequest& request);

}  // namespace oom::hardware
