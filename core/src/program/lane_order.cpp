#include "program/lane_order.h"

namespace oom::program {

int lane_index(const Program& program, LaneId lane) {
  if (is_pool_lane(lane.lane)) {
    OOM_CHECK(lane.index >= 0 && lane.index < program.nodes, lane_id_name(lane), ": there are ", program.nodes, " nodes");
    return program.ranks * kRankLanes + lane.index * 2 + (lane.lane == Lane::kUpdate ? 1 : 0);
  }
  OOM_CHECK(lane.index >= 0 && lane.index < program.ranks, lane_id_name(lane), ": there are ", program.ranks, " ranks");
  return lane.index * kRankLanes + static_cast<int>(lane.lane);
}

LaneId lane_at(const Program& program, int index) {
  const int pools = program.ranks * kRankLanes;
  if (index < pools) return {static_cast<Lane>(index % kRankLanes), index / kRankLanes};
  return {(index - pools) % 2 == 1 ? Lane::kUpdate : Lane::kPrepare, (index - pools) / 2};
}

LaneOrder::LaneOrder(const Program& program) {
  stages.resize(static_cast<size_t>(program.ranks * kRankLanes + program.nodes * 2));
  for (size_t id = 0; id < program.stages.size(); ++id) {
    const int at = lane_index(program, program.stages[id].lane);
    lane.push_back(at);
    position.push_back(static_cast<int>(stages[at].size()));
    stages[at].push_back(static_cast<StageId>(id));
  }
}

}  // namespace oom::program
