#include "program/edge_reduction.h"

#include <algorithm>
#include <queue>
#include <span>

#include "program/lane_order.h"

namespace oom::program {
namespace {

// Lists of numbers, one behind the other: list i is [begin[i], begin[i + 1]) of `all`.
struct Lists {
  std::vector<int> begin, all;

  // `each(add)` calls add(list, number) for all of them, and does so twice.
  template <typename Each>
  Lists(size_t count, const Each& each) : begin(count + 1, 0) {
    each([&](int list, int) { ++begin[list + 1]; });
    for (size_t list = 0; list < count; ++list) begin[list + 1] += begin[list];
    all.resize(begin.back());
    std::vector<int> end(begin.begin(), begin.end() - 1);
    each([&](int list, int number) { all[end[list]++] = number; });
  }
  size_t size() const { return begin.size() - 1; }
  std::span<const int> operator[](size_t list) const { return {all.data() + begin[list], all.data() + begin[list + 1]}; }
};

// Groups of stages: a group is what must be ordered as one, a stage alone, or the members of a collective, none of which completes before all start.
struct Grouping {
  explicit Grouping(const Program& program) : of_stage(program.stages.size()) {
    std::vector<int> of_collective(program.collectives.size(), kNone);
    for (size_t id = 0; id < program.stages.size(); ++id) {
      const CollectiveId collective = program.stages[id].collective;
      int group = collective == kNone ? kNone : of_collective[collective];
      if (group == kNone) group = count++;
      if (collective != kNone) of_collective[collective] = group;
      of_stage[id] = group;
    }
  }
  std::vector<int> of_stage;
  int count = 0;
};
struct Groups : Grouping {
  explicit Groups(const Program& program)
      : Grouping(program), members(static_cast<size_t>(count), [&](const auto& add) {
          for (size_t id = 0; id < of_stage.size(); ++id) add(of_stage[id], static_cast<int>(id));
        }) {}
  Lists members;
};

StageId lane_predecessor(const LaneOrder& lanes, StageId id) {
  const int position = lanes.position[id];
  return position == 0 ? kNone : lanes.stages[lanes.lane[id]][position - 1];
}

[[noreturn]] void raise_circle(const Program& program, const Groups& groups, const Lists& successors, const std::vector<int>& waiting) {
  // Every group that still waits has a predecessor that does: walking backwards must come round.
  std::vector<int> predecessor(groups.members.size(), kNone);
  for (size_t group = 0; group < successors.size(); ++group) {
    if (waiting[group] == 0) continue;
    for (int next : successors[group]) predecessor[next] = static_cast<int>(group);
  }
  int group = 0;
  while (waiting[group] == 0) ++group;
  std::vector<bool> seen(groups.members.size(), false);
  for (; !seen[group]; group = predecessor[group]) seen[group] = true;
  std::string circle;
  const int first = group;
  do {
    circle += cat(stage_name(program, groups.members[group].front()), groups.members[group].size() > 1 ? " and its peers" : "", " <- ");
    group = predecessor[group];
  } while (group != first);
  throw Error(cat("stages wait for each other in a circle: ", circle, "the first again. Collectives must be emitted in one order on all ranks"));
}

// Groups in an order in which each comes after all that it waits for; earliest emitted first among the free.
std::vector<int> execution_order(const Program& program, const LaneOrder& lanes, const Groups& groups,
                                 const std::vector<std::vector<Edge>>& wanted) {
  const Lists successors(groups.members.size(), [&](const auto& add) {
    for (size_t id = 0; id < program.stages.size(); ++id) {
      const int to = groups.of_stage[id];
      if (const StageId before = lane_predecessor(lanes, static_cast<StageId>(id)); before != kNone) add(groups.of_stage[before], to);
      for (const Edge& edge : wanted[id]) {
        if (edge.distance == 0) add(groups.of_stage[edge.stage], to);
      }
    }
  });
  std::vector<int> waiting(groups.members.size(), 0);
  for (const int to : successors.all) ++waiting[to];
  std::priority_queue<int, std::vector<int>, std::greater<>> free;
  for (size_t group = 0; group < waiting.size(); ++group) {
    if (waiting[group] == 0) free.push(static_cast<int>(group));
  }
  std::vector<int> result;
  while (!free.empty()) {
    const int group = free.top();
    free.pop();
    result.push_back(group);
    for (int next : successors[group]) {
      if (--waiting[next] == 0) free.push(next);
    }
  }
  if (result.size() != groups.members.size()) raise_circle(program, groups, successors, waiting);
  return result;
}

// Vector clocks of two successive steps: entry [lane] counts the completed stages of that lane since the first of the two began.
class Reduction {
 public:
  Reduction(Program& program, const std::vector<std::vector<Edge>>& wanted)
      : program_(program), wanted_(wanted), lanes_(program), groups_(program), order_(execution_order(program, lanes_, groups_, wanted)),
        rank_(program.stages.size()), width_(static_cast<size_t>(lanes_.lane_count())) {
    for (size_t at = 0; at < order_.size(); ++at) {
      for (StageId id : groups_.members[order_[at]]) rank_[id] = static_cast<int>(at);
    }
    for (auto& clocks : clocks_) clocks.assign(program.stages.size() * width_, 0);
  }

  void run() {
    for (Stage& stage : program_.stages) stage.after.clear();
    for (int step = 0; step < 2; ++step) {
      for (int group : order_) {
        const std::span<const int> members = groups_.members[group];
        for (StageId id : members) start(step, id);
        complete(step, members);
      }
    }
  }

 private:
  int32_t* clock(int step, StageId id) { return clocks_[step].data() + static_cast<size_t>(id) * width_; }
  int32_t count(int step, StageId id) const { return step * lanes_.length(lanes_.lane[id]) + lanes_.position[id] + 1; }
  void join(int32_t* into, const int32_t* from) {
    for (size_t lane = 0; lane < width_; ++lane) into[lane] = std::max(into[lane], from[lane]);
  }

  // Leaves in the stage's clock what has completed when it starts, and decides its edges: those of distance 0 in the first step,
  // those of distance 1 in the second. Latest sources first, so that whatever a later one implies is not kept.
  void start(int step, StageId id) {
    int32_t* mine = clock(step, id);
    Stage& stage = program_.stages[id];
    if (const StageId before = lane_predecessor(lanes_, id); before != kNone) {
      join(mine, clock(step, before));
    } else if (step == 1) {
      join(mine, clock(0, lanes_.stages[lanes_.lane[id]].back()));
    }
    if (step == 1) {
      for (const Edge& edge : stage.after) join(mine, clock(1, edge.stage));
    }
    candidates_.clear();
    for (const Edge& edge : wanted_[id]) {
      if (edge.distance == step) candidates_.push_back(edge);
    }
    std::sort(candidates_.begin(), candidates_.end(), [&](const Edge& a, const Edge& b) { return rank_[a.stage] > rank_[b.stage]; });
    for (const Edge& edge : candidates_) {
      if (mine[lanes_.lane[edge.stage]] >= count(0, edge.stage)) continue;
      stage.after.push_back(edge);
      join(mine, clock(0, edge.stage));
    }
  }

  void complete(int step, std::span<const StageId> members) {
    if (members.size() > 1) {
      std::vector<int32_t> all(width_, 0);
      for (StageId id : members) join(all.data(), clock(step, id));
      for (StageId id : members) std::copy(all.begin(), all.end(), clock(step, id));
    }
    for (StageId id : members) {
      int32_t& own = clock(step, id)[lanes_.lane[id]];
      own = std::max(own, count(step, id));
    }
  }

  Program& program_;
  const std::vector<std::vector<Edge>>& wanted_;
  LaneOrder lanes_;
  Groups groups_;
  std::vector<int> order_;
  std::vector<int> rank_;  // [stage] place in order_
  size_t width_;
  std::vector<int32_t> clocks_[2];
  std::vector<Edge> candidates_;  // of the stage at hand
};

}  // namespace

void reduce_edges(Program& program, const std::vector<std::vector<Edge>>& wanted) { Reduction(program, wanted).run(); }

}  // namespace oom::program
