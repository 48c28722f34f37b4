#include "program/resources.h"

#include <algorithm>
#include <numeric>

namespace oom::program {

Resources::Resources(const Program& program, const CostTable& table)
    : program_(program), pool_weight_(table.pool_weight), ranks_(program.ranks) {
  for (int rank = 0; rank < program.ranks; ++rank) {
    for (double rate : {table.h2d_bytes, table.d2h_bytes, table.pcie_bytes, table.peer_bytes}) capacities_.push_back(rate);
  }
  for (int node = 0; node < program.nodes; ++node) {
    for (double rate : {table.host_io_bytes, table.host_dram_bytes, table.update_parameters, table.convert_parameters}) capacities_.push_back(rate);
  }
  for (double capacity : capacities_) OOM_CHECK_GT(capacity, 0, "rates of a cost table");
}

std::string Resources::name(int resource) const {
  static constexpr const char* kRankNames[] = {"h2d", "d2h", "pcie", "peer"};
  static constexpr const char* kNodeNames[] = {"host_io", "host_dram", "update", "convert"};
  const int nodes_begin = ranks_ * kRankResources;
  if (resource < nodes_begin) return cat(kRankNames[resource % kRankResources], " of rank ", resource / kRankResources);
  return cat(kNodeNames[(resource - nodes_begin) % kNodeResources], " of numa ", (resource - nodes_begin) / kNodeResources);
}

std::vector<Draw> Resources::draws_of(const Stage& stage) const {
  const Cost& cost = stage.cost;
  std::vector<Draw> draws;
  const auto draw = [&](int resource, double amount) {
    if (amount > 0) draws.push_back({resource, amount * cost.repeats});
  };
  if (const int rank = stage.rank; rank >= 0 && rank < ranks_) {
    draw(of_rank(rank, kH2d), cost.h2d_bytes);
    draw(of_rank(rank, kD2h), cost.d2h_bytes);
    draw(of_rank(rank, kPcie), cost.h2d_bytes + cost.d2h_bytes);
    draw(of_rank(rank, kPeer), cost.peer_bytes);
    draw(of_node(program_.node_of_rank[rank], kHostIo), cost.h2d_bytes + cost.d2h_bytes);
  }
  for (int node = 0; node < program_.nodes; ++node) draw(of_node(node, kHostDram), cost.host_bytes[node]);
  if (is_pool_lane(stage.lane.lane)) {
    draw(of_node(stage.lane.index, kUpdate), cost.update_parameters);
    draw(of_node(stage.lane.index, kConvert), cost.convert_parameters);
  }
  return draws;
}

double Resources::step_of(const Stage& stage) const {
  const Cost& cost = stage.cost;
  const double host = std::accumulate(cost.host_bytes.begin(), cost.host_bytes.end(), 0.0);
  const double size = cost.repeats * std::max({host, cost.h2d_bytes + cost.d2h_bytes, cost.peer_bytes, cost.update_parameters, cost.convert_parameters, 1.0});
  return (is_pool_lane(stage.lane.lane) ? pool_weight_ : 1.0) / size;
}

}  // namespace oom::program
