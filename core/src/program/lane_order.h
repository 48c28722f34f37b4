/// Which stages each lane executes, in order: the one index that every reader of a program needs.
#pragma once

#include <vector>

#include "oom/stage.h"

namespace oom::program {

/// Lanes are numbered densely: the six of each rank, then prepare and update of each node.
struct LaneOrder {
  explicit LaneOrder(const Program& program);

  int lane_count() const { return static_cast<int>(stages.size()); }
  int length(int lane) const { return static_cast<int>(stages[lane].size()); }

  std::vector<std::vector<StageId>> stages;  // [lane] in emission order
  std::vector<int> lane;                     // [stage]
  std::vector<int> position;                 // [stage] in its lane
};

inline constexpr int kRankLanes = 6;
int lane_index(const Program& program, LaneId lane);
LaneId lane_at(const Program& program, int index);

}  // namespace oom::program
