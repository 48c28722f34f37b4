#include "program/unrolled_run.h"

#include <algorithm>

namespace oom::program {

UnrolledRun::UnrolledRun(const Program& program, const LaneOrder& lanes, int steps, bool issuing_threads)
    : program_(program), lanes_(lanes), steps_(steps), width_(static_cast<size_t>(lanes.lane_count())) {
  members_.resize(program.collectives.size());
  for (size_t id = 0; id < program.stages.size(); ++id) {
    const CollectiveId collective = program.stages[id].collective;
    if (collective != kNone) members_[collective].push_back(static_cast<StageId>(id));
  }
  const size_t instances = program.stages.size() * static_cast<size_t>(steps);
  launched_.assign(instances, issuing_threads ? 0 : 1);
  started_.assign(instances, 0);
  completed_.assign(instances, 0);
  lane_cursor_.assign(width_, 0);
  if (issuing_threads) {
    thread_stages_.resize(static_cast<size_t>(program.ranks));
    thread_cursor_.assign(static_cast<size_t>(program.ranks), 0);
    for (size_t id = 0; id < program.stages.size(); ++id) {
      const LaneId lane = program.stages[id].lane;
      if (!is_pool_lane(lane.lane)) {
        thread_stages_[lane.index].push_back(static_cast<StageId>(id));
        continue;
      }
      for (int step = 0; step < steps; ++step) launched_[index({step, static_cast<StageId>(id)})] = 1;
    }
  } else {
    start_clock_.assign(instances * width_, 0);
    end_clock_.assign(instances * width_, 0);
  }
}

bool UnrolledRun::edges_done(Instance at) const {
  const auto& edges = program_.stages[at.stage].after;
  return std::all_of(edges.begin(), edges.end(), [&](const Edge& edge) {
    return at.step < edge.distance || completed_[index({at.step - edge.distance, edge.stage})];
  });
}

bool UnrolledRun::can_launch(Instance at) const {
  const Stage& stage = program_.stages[at.stage];
  if (stage.lane.lane == Lane::kIssue) return true;  // the thread goes in and waits inside
  return std::all_of(stage.after.begin(), stage.after.end(), [&](const Edge& edge) {
    if (at.step < edge.distance) return true;
    const size_t before = index({at.step - edge.distance, edge.stage});
    return is_stream_lane(program_.stages[edge.stage].lane.lane) ? launched_[before] != 0 : completed_[before] != 0;
  });
}

bool UnrolledRun::advance_thread(int rank) {
  const auto& stages = thread_stages_[rank];
  size_t& cursor = thread_cursor_[rank];
  bool moved = false;
  while (cursor < stages.size() * static_cast<size_t>(steps_)) {
    const Instance at{static_cast<int>(cursor / stages.size()), stages[cursor % stages.size()]};
    if (!launched_[index(at)]) {
      if (!can_launch(at)) break;
      launched_[index(at)] = 1;
      moved = true;
    }
    if (program_.stages[at.stage].lane.lane == Lane::kIssue && !completed_[index(at)]) break;
    ++cursor;
    moved = true;
  }
  return moved;
}

void UnrolledRun::start(Instance at) {
  started_[index(at)] = 1;
  if (start_clock_.empty()) return;
  int32_t* mine = start_clock_.data() + index(at) * width_;
  const auto join = [&](Instance before) {
    const int32_t* other = end_clock_.data() + index(before) * width_;
    for (size_t lane = 0; lane < width_; ++lane) mine[lane] = std::max(mine[lane], other[lane]);
  };
  const auto& in_lane = lanes_.stages[lanes_.lane[at.stage]];
  const int position = lanes_.position[at.stage];
  if (position > 0) join({at.step, in_lane[position - 1]});
  else if (at.step > 0) join({at.step - 1, in_lane.back()});
  for (const Edge& edge : program_.stages[at.stage].after) {
    if (at.step >= edge.distance) join({at.step - edge.distance, edge.stage});
  }
}

bool UnrolledRun::try_complete(Instance at) {
  const CollectiveId collective = program_.stages[at.stage].collective;
  if (collective != kNone) {
    for (StageId member : members_[collective]) {
      if (!started_[index({at.step, member})]) return false;
    }
  }
  completed_[index(at)] = 1;
  if (end_clock_.empty()) return true;
  int32_t* mine = end_clock_.data() + index(at) * width_;
  const auto join = [&](StageId member) {
    const int32_t* other = start_clock_.data() + index({at.step, member}) * width_;
    for (size_t lane = 0; lane < width_; ++lane) mine[lane] = std::max(mine[lane], other[lane]);
  };
  join(at.stage);
  if (collective != kNone) {
    for (StageId member : members_[collective]) join(member);
  }
  const int lane = lanes_.lane[at.stage];
  mine[lane] = std::max(mine[lane], at.step * lanes_.length(lane) + lanes_.position[at.stage] + 1);
  return true;
}

bool UnrolledRun::advance_lane(int lane) {
  const auto& stages = lanes_.stages[lane];
  size_t& cursor = lane_cursor_[lane];
  bool moved = false;
  while (cursor < stages.size() * static_cast<size_t>(steps_)) {
    const Instance at{static_cast<int>(cursor / stages.size()), stages[cursor % stages.size()]};
    if (!started_[index(at)]) {
      if (!launched_[index(at)] || !edges_done(at)) break;
      start(at);
      moved = true;
    }
    if (!try_complete(at)) break;
    ++cursor;
    moved = true;
  }
  return moved;
}

std::vector<Instance> UnrolledRun::run() {
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < thread_stages_.size(); ++rank) moved |= advance_thread(static_cast<int>(rank));
    for (size_t lane = 0; lane < width_; ++lane) moved |= advance_lane(static_cast<int>(lane));
  }
  std::vector<Instance> stuck;
  const auto collect = [&](const std::vector<StageId>& stages, size_t cursor) {
    if (cursor < stages.size() * static_cast<size_t>(steps_)) {
      stuck.push_back({static_cast<int>(cursor / stages.size()), stages[cursor % stages.size()]});
    }
  };
  for (size_t rank = 0; rank < thread_stages_.size(); ++rank) collect(thread_stages_[rank], thread_cursor_[rank]);
  for (size_t lane = 0; lane < width_; ++lane) collect(lanes_.stages[lane], lane_cursor_[lane]);
  return stuck;
}

bool UnrolledRun::ordered(Instance before, Instance after) const {
  const int lane = lanes_.lane[before.stage];
  const int32_t count = before.step * lanes_.length(lane) + lanes_.position[before.stage] + 1;
  return start_clock_[index(after) * width_ + static_cast<size_t>(lane)] >= count;
}

}  // namespace oom::program
