/// Numbers the shared resources of a program and says what each stage draws from them.
#pragma once

#include <string>
#include <vector>

#include "oom/cost_table.h"
#include "program/fair_shares.h"

namespace oom::program {

class Resources {
 public:
  Resources(const Program& program, const CostTable& table);

  int count() const { return static_cast<int>(capacities_.size()); }
  const std::vector<double>& capacities() const { return capacities_; }
  std::string name(int resource) const;
  /// Draws of `stage`, none of amount 0.
  std::vector<Draw> draws_of(const Stage& stage) const;
  /// Whether work of several lanes may draw on it at once. A rank's copies to its peers are all of one lane.
  bool is_shared(int resource) const { return resource >= ranks_ * kRankResources || resource % kRankResources != kPeer; }
  /// Speed that the stage's work gains per unit of fairness level.
  double step_of(const Stage& stage) const;

 private:
  enum RankResource { kH2d, kD2h, kPcie, kPeer, kRankResources };
  enum NodeResource { kHostIo, kHostDram, kUpdate, kConvert, kNodeResources };
  int of_rank(int rank, RankResource which) const { return rank * kRankResources + which; }
  int of_node(int node, NodeResource which) const { return ranks_ * kRankResources + node * kNodeResources + which; }

  const Program& program_;
  double pool_weight_;
  int ranks_;
  std::vector<double> capacities_;
};

}  // namespace oom::program
