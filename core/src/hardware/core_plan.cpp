#include "hardware/core_plan.h"

#include <algorithm>
#include <cmath>

#include "oom/error.h"

namespace oom::hardware {
namespace {

constexpr int kFewestCoresToDivide = 4;

/// Takes up to `count` cores off the front of `cores`.
std::vector<int> take(std::vector<int>& cores, size_t count) {
  const auto end = cores.begin() + static_cast<std::ptrdiff_t>(std::min(count, cores.size()));
  std::vector<int> taken(cores.begin(), end);
  cores.erase(cores.begin(), end);
  return taken;
}

/// The node itself, or the next one with cores.
int node_with_cores(const Topology& topology, int node) {
  const int count = static_cast<int>(topology.nodes.size());
  for (int distance = 0; distance < count; ++distance)
    for (int candidate : {node - distance, node + distance})
      if (candidate >= 0 && candidate < count && !topology.nodes[candidate].cores.empty()) return candidate;
  throw Error("a machine without processors");
}

std::vector<int> every_cpu(const NumaNode& node) {
  std::vector<int> cpus;
  for (const Core& core : node.cores) cpus.insert(cpus.end(), core.cpus.begin(), core.cpus.end());
  std::ranges::sort(cpus);
  return cpus;
}

/// "0-3,8" of {0, 1, 2, 3, 8}.
std::string ranges(std::vector<int> cpus) {
  std::ranges::sort(cpus);
  std::string text;
  for (size_t i = 0; i < cpus.size();) {
    size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    text += cat(text.empty() ? "" : ",", cpus[i], last > i ? cat("-", cpus[last]) : "");
    i = last + 1;
  }
  return text;
}

}  // namespace

CorePlan plan_cores(const Topology& topology, const CorePlanRequest& request) {
  CorePlan plan;
  const int nodes = static_cast<int>(topology.nodes.size());
  plan.nodes.resize(nodes);
  plan.rank_cpus.resize(request.node_of_rank.size());
  std::vector<std::vector<size_t>> ranks_near(nodes);
  for (size_t rank = 0; rank < request.node_of_rank.size(); ++rank) {
    const int node = request.node_of_rank[rank];
    OOM_CHECK(node >= 0 && node < nodes, "rank ", rank, " is near NUMA node ", node, " of ", nodes);
    ranks_near[node_with_cores(topology, node)].push_back(rank);
  }
  // A quota in processors' worth of time is spread over the nodes: more threads than it would only be stopped in turns.
  const double share = request.cpu_quota ? std::min(1.0, *request.cpu_quota / topology.core_count()) : 1.0;

  for (int n = 0; n < nodes; ++n) {
    if (topology.nodes[n].cores.empty()) continue;
    CorePlan::Node& node = plan.nodes[n];
    std::vector<int> cores = topology.first_cpus(n);
    cores.resize(std::max<size_t>(1, static_cast<size_t>(std::lround(share * static_cast<double>(cores.size())))));
    const size_t count = cores.size();
    if (count < kFewestCoresToDivide || count < ranks_near[n].size() + 2) {
      node = {cores, cores, true};
      for (size_t rank : ranks_near[n]) plan.rank_cpus[rank] = every_cpu(topology.nodes[n]);
      continue;
    }
    for (size_t rank : ranks_near[n]) plan.rank_cpus[rank] = take(cores, 1);
    if (count >= 8) {
      const std::vector<int> helpers = take(cores, std::min(std::max<size_t>(1, count / 16), cores.size() - 2));
      plan.helper_cpus.insert(plan.helper_cpus.end(), helpers.begin(), helpers.end());
    }
    node.prepare = take(cores, std::max<size_t>(1, cores.size() / 4));
    node.update = cores;
  }

  for (int n = 0; n < nodes; ++n)
    if (topology.nodes[n].cores.empty()) {
      plan.nodes[n] = plan.nodes[node_with_cores(topology, n)];
      plan.nodes[n].shared = true;
    }
  if (plan.helper_cpus.empty())
    for (const NumaNode& node : topology.nodes) {
      const std::vector<int> cpus = every_cpu(node);
      plan.helper_cpus.insert(plan.helper_cpus.end(), cpus.begin(), cpus.end());
    }
  return plan;
}

std::string CorePlan::describe() const {
  std::string text;
  for (size_t rank = 0; rank < rank_cpus.size(); ++rank) text += cat("rank ", rank, ": ", ranges(rank_cpus[rank]), "\n");
  for (size_t n = 0; n < nodes.size(); ++n)
    text += cat("NUMA node ", n, ": prepare ", ranges(nodes[n].prepare), "; update ", ranges(nodes[n].update), nodes[n].shared ? " (shared)" : "", "\n");
  return text + cat("helpers: ", ranges(helper_cpus), "\n");
}

}  // namespace oom::hardware
