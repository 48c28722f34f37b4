#include "program/timeline.h"

#include <algorithm>
#include <limits>

namespace oom::program {

Timeline::Timeline(const Program& program, const CostTable& table, SimulationOptions options, int steps)
    : program_(program), table_(table), options_(options), lanes_(program), resources_(program, table), shares_(resources_.capacities()),
      count_(static_cast<int>(program.stages.size())), steps_(steps), members_(program.collectives.size()),
      arrived_(program.collectives.size() * static_cast<size_t>(steps), 0), taken_sm_(static_cast<size_t>(program.ranks), 0),
      clocks_(static_cast<size_t>(program.ranks)), computes_(static_cast<size_t>(program.ranks), 0) {
  for (int id = 0; id < count_; ++id) {
    const Stage& stage = program.stages[id];
    const Demand demand = demand_of(program, stage, table);
    Work work{demand.fixed_seconds, demand.compute_seconds, 0, resources_.draws_of(stage), resources_.step_of(stage)};
    for (const Draw& draw : work.draws) work.alone = std::max(work.alone, draw.amount / resources_.capacities()[draw.resource]);
    work_.push_back(std::move(work));
    if (stage.collective != kNone) members_[stage.collective].push_back(id);
  }
  prepare_dependencies();
}

void Timeline::prepare_dependencies() {
  const size_t instances = static_cast<size_t>(count_) * static_cast<size_t>(steps_);
  successors_.resize(count_);
  launch_after_completion_.resize(count_);
  launch_after_launch_.resize(count_);
  pending_.assign(instances, 0);
  launch_pending_.assign(instances, 0);
  cause_.assign(instances, kNone);
  launch_cause_.assign(instances, kNone);
  times_.resize(instances);
  work_begin_.assign(instances, 0);
  const auto depend = [&](std::vector<std::vector<Edge>>& lists, std::vector<int>& pending, StageId before, StageId after, int distance) {
    lists[before].push_back({after, distance});
    for (int step = distance; step < steps_; ++step) ++pending[instance(step, after)];
  };
  for (int id = 0; id < count_; ++id) {
    const auto& in_lane = lanes_.stages[lanes_.lane[id]];
    const int position = lanes_.position[id];
    depend(successors_, pending_, position > 0 ? in_lane[position - 1] : in_lane.back(), id, position > 0 ? 0 : 1);
    for (const Edge& edge : program_.stages[id].after) depend(successors_, pending_, edge.stage, id, edge.distance);
  }
  if (!options_.issuing_threads) return;
  threads_.resize(program_.ranks);
  thread_cursor_.assign(program_.ranks, 0);
  thread_inside_.assign(program_.ranks, 0);
  for (int id = 0; id < count_; ++id) {
    const LaneId lane = program_.stages[id].lane;
    if (is_pool_lane(lane.lane)) continue;
    threads_[lane.index].push_back(id);
    for (int step = 0; step < steps_; ++step) ++pending_[instance(step, id)];  // its launch
    if (lane.lane == Lane::kIssue) continue;
    for (const Edge& edge : program_.stages[id].after) {
      const LaneId before = program_.stages[edge.stage].lane;
      if (is_pool_lane(before.lane) && program_.stages[id].waits_on_stream) continue;
      if (!is_stream_lane(before.lane)) depend(launch_after_completion_, launch_pending_, edge.stage, id, edge.distance);
      else if (before.index != lane.index) depend(launch_after_launch_, launch_pending_, edge.stage, id, edge.distance);
    }
  }
}

void Timeline::satisfied(int at, int cause) {
  if (--pending_[at] == 0) start(at, cause);
}

void Timeline::launch_satisfied(int at, int cause) {
  launch_cause_[at] = cause;
  if (--launch_pending_[at] > 0) return;
  advance_thread(program_.stages[stage_of(at)].lane.index, cause);
}

// Launches what the rank's thread can launch; `cause` let it go on.
void Timeline::advance_thread(int rank, int cause) {
  const auto& stages = threads_[rank];
  size_t& cursor = thread_cursor_[rank];
  while (cursor < stages.size() * static_cast<size_t>(steps_) && !thread_inside_[rank]) {
    const int at = instance(static_cast<int>(cursor / stages.size()), stages[cursor % stages.size()]);
    if (launch_pending_[at] > 0) return;
    ++cursor;
    if (program_.stages[stage_of(at)].lane.lane == Lane::kIssue) thread_inside_[rank] = 1;
    satisfied(at, cause);
    for (const Edge& edge : launch_after_launch_[stage_of(at)]) {
      if (step_of(at) + edge.distance < steps_) launch_satisfied(instance(step_of(at) + edge.distance, edge.stage), cause);
    }
  }
}

void Timeline::start(int at, int cause) {
  times_[at].start = now_;
  cause_[at] = cause;
  const CollectiveId collective = program_.stages[stage_of(at)].collective;
  if (collective == kNone) {
    ready_.push_back(at);
    return;
  }
  int& arrived = arrived_[static_cast<size_t>(step_of(at)) * members_.size() + static_cast<size_t>(collective)];
  if (++arrived < static_cast<int>(members_[collective].size())) return;
  for (StageId member : members_[collective]) {
    const int other = instance(step_of(at), member);
    cause_[other] = cause;
    ready_.push_back(other);
  }
}

void Timeline::begin_work(int at) {
  work_begin_[at] = now_;
  const Work& work = work_[stage_of(at)];
  Active active{at, Phase::kFixed, work.fixed, {}};
  active.flow.draws = work.draws.data();
  active.flow.draw_count = static_cast<int>(work.draws.size());
  active.flow.step = work.step;
  if (work.fixed <= 0) {
    active.phase = Phase::kFlowing;
    active.remaining = work.compute > 0 || work.alone > 0 ? 1 : 0;
  }
  const Stage& stage = program_.stages[stage_of(at)];
  if (stage.cost.sm_share > 0 && stage.lane.lane != Lane::kCompute && stage.rank >= 0) taken_sm_[stage.rank] += stage.cost.sm_share;
  if (stage.lane.lane == Lane::kCompute) computes_[stage.rank] = 1;
  speeds_stale_ = true;
  active_.push_back(active);
}

void Timeline::complete(int at) {
  ++completed_;
  times_[at].end = now_;
  const StageId id = stage_of(at);
  const Stage& stage = program_.stages[id];
  if (stage.cost.sm_share > 0 && stage.lane.lane != Lane::kCompute && stage.rank >= 0) taken_sm_[stage.rank] -= stage.cost.sm_share;
  if (stage.lane.lane == Lane::kCompute) computes_[stage.rank] = 0;
  speeds_stale_ = true;
  for (const Edge& edge : successors_[id]) {
    if (step_of(at) + edge.distance < steps_) satisfied(instance(step_of(at) + edge.distance, edge.stage), at);
  }
  if (!options_.issuing_threads) return;
  for (const Edge& edge : launch_after_completion_[id]) {
    if (step_of(at) + edge.distance < steps_) launch_satisfied(instance(step_of(at) + edge.distance, edge.stage), at);
  }
  if (stage.lane.lane == Lane::kIssue) {
    thread_inside_[stage.lane.index] = 0;
    advance_thread(stage.lane.index, at);
  }
}

void Timeline::set_speeds() {
  flows_.clear();
  for (Active& active : active_) {
    if (active.phase == Phase::kFixed) {
      active.flow.speed = 1;
      continue;
    }
    const Stage& stage = program_.stages[stage_of(active.instance)];
    const Work& work = work_[stage_of(active.instance)];
    double compute = work.compute;
    if (stage.lane.lane == Lane::kCompute) compute *= clocks_[stage.rank].seconds(table_, active.remaining * compute) / std::max(0.05, 1 - taken_sm_[stage.rank]);
    active.flow.limit = 1 / std::max({compute, work.alone, 1e-15});
    active.flow.speed = active.flow.limit;
    if (active.flow.draw_count > 0) flows_.push_back(&active.flow);
  }
  // One flow alone already has its limit.
  if (flows_.size() > 1) shares_.fill(flows_);
  speeds_stale_ = false;
}

void Timeline::pass(double seconds) {
  now_ += seconds;
  if (table_.clock.empty()) return;
  for (size_t rank = 0; rank < clocks_.size(); ++rank) clocks_[rank].advance(seconds, computes_[rank] != 0);
}

// Goes to the next moment at which a phase ends.
void Timeline::step_clock() {
  if (speeds_stale_) set_speeds();
  double wait = std::numeric_limits<double>::infinity();
  for (const Active& active : active_) wait = std::min(wait, active.remaining / active.flow.speed);
  pass(wait);
  const double slack = 1e-12 * std::max(1.0, now_);
  std::vector<int> done;
  size_t kept = 0;
  for (Active& active : active_) {
    active.remaining -= wait * active.flow.speed;
    if (active.remaining <= slack * active.flow.speed) {
      const Work& work = work_[stage_of(active.instance)];
      if (active.phase == Phase::kFlowing || (work.compute <= 0 && work.alone <= 0)) {
        done.push_back(active.instance);
        continue;
      }
      active.phase = Phase::kFlowing;
      active.remaining = 1;
      speeds_stale_ = true;
    }
    active_[kept++] = active;
  }
  active_.resize(kept);
  for (int at : done) complete(at);
}

void Timeline::run() {
  if (count_ == 0) return;
  const int instances = count_ * steps_;
  // Only those that have no dependency at all begin here: a launch below may start others.
  std::vector<int> free;
  for (int at = 0; at < instances; ++at) {
    if (pending_[at] == 0) free.push_back(at);
  }
  for (int at : free) start(at, kNone);
  for (size_t rank = 0; rank < threads_.size(); ++rank) advance_thread(static_cast<int>(rank), kNone);
  while (true) {
    for (size_t i = 0; i < ready_.size(); ++i) begin_work(ready_[i]);
    ready_.clear();
    if (active_.empty()) break;
    step_clock();
  }
  OOM_CHECK_EQ(completed_, instances, "stages wait for each other for ever; the verifier names them");
}

}  // namespace oom::program
