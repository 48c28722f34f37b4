#include "oom/simulator.h"

#include <algorithm>
#include <map>

#include "program/timeline.h"

namespace oom {
inline namespace abi_1 {

namespace {

constexpr int kSteps = 3;

class Report {
 public:
  Report(const Program& program, const CostTable& table, const program::Timeline& timeline)
      : program_(program), timeline_(timeline), resources_(program, table) {}

  Simulation make() {
    if (program_.stages.empty()) return {};
    const double begin = end_of(1), end = end_of(2);
    result_.step_seconds = end - begin;
    for (size_t id = 0; id < program_.stages.size(); ++id) result_.stages.push_back(shifted(timeline_.time(2, static_cast<StageId>(id)), begin));
    add_critical_path(begin);
    add_waits();
    add_busy();
    add_resources();
    return std::move(result_);
  }

 private:
  static StageTime shifted(StageTime time, double by) { return {time.start - by, time.end - by}; }

  // The last stage on a compute lane marks the end of a step; any lane's where nothing computes.
  StageId last_stage(int step) const {
    StageId last = kNone;
    for (bool any_lane : {false, true}) {
      for (size_t id = 0; id < program_.stages.size(); ++id) {
        if (!any_lane && program_.stages[id].lane.lane != Lane::kCompute) continue;
        if (last == kNone || timeline_.time(step, static_cast<StageId>(id)).end > timeline_.time(step, last).end) last = static_cast<StageId>(id);
      }
      if (last != kNone) break;
    }
    return last;
  }
  double end_of(int step) const { return timeline_.time(step, last_stage(step)).end; }

  void add_critical_path(double begin) {
    for (int at = timeline_.instance(2, last_stage(2)); at != kNone; at = timeline_.cause(at)) {
      const int step = timeline_.step_of(at);
      const StageId stage = timeline_.stage_of(at);
      const StageTime time{timeline_.work_begin(at), timeline_.time(step, stage).end};
      if (time.end <= begin) break;
      result_.critical_path.push_back({stage, 2 - step, shifted(time, begin)});
    }
    std::reverse(result_.critical_path.begin(), result_.critical_path.end());
  }

  void add_waits() {
    std::map<std::pair<Lane, KindId>, double> seconds;
    const program::LaneOrder lanes(program_);
    for (int rank = 0; rank < program_.ranks; ++rank) {
      const auto& stages = lanes.stages[program::lane_index(program_, {Lane::kCompute, rank})];
      if (stages.empty()) continue;
      double free = timeline_.time(1, stages.back()).end;
      for (StageId stage : stages) {
        const StageTime time = timeline_.time(2, stage);
        // The gap belongs to whatever worked in it, link by link back along the chain of causes.
        double until = time.start;
        for (int at = timeline_.cause(timeline_.instance(2, stage)); at != kNone && until > free; at = timeline_.cause(at)) {
          const Stage& blamed = program_.stages[timeline_.stage_of(at)];
          const double from = std::max(free, timeline_.work_begin(at));
          if (from < until) seconds[{blamed.lane.lane, blamed.kind}] += (until - from) / program_.ranks;
          until = std::min(until, from);
        }
        free = time.end;
      }
    }
    for (const auto& [key, value] : seconds) result_.waits.push_back({key.first, key.second, value});
    std::stable_sort(result_.waits.begin(), result_.waits.end(), [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  }

  void add_busy() {
    std::map<std::pair<Lane, KindId>, KindTime> kinds;
    for (size_t id = 0; id < program_.stages.size(); ++id) {
      const Stage& stage = program_.stages[id];
      KindTime& time = kinds[{stage.lane.lane, stage.kind}];
      time.lane = stage.lane.lane;
      time.kind = stage.kind;
      ++time.stages;
      time.seconds += result_.stages[id].seconds();
    }
    for (const auto& entry : kinds) result_.busy.push_back(entry.second);
    std::stable_sort(result_.busy.begin(), result_.busy.end(), [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  }

  void add_resources() {
    std::vector<double> amounts(static_cast<size_t>(resources_.count()), 0);
    std::vector<double> compute(static_cast<size_t>(program_.ranks), 0);
    for (size_t id = 0; id < program_.stages.size(); ++id) {
      const Stage& stage = program_.stages[id];
      for (const program::Draw& draw : resources_.draws_of(stage)) amounts[draw.resource] += draw.amount;
      if (stage.lane.lane == Lane::kCompute) compute[stage.lane.index] += result_.stages[id].seconds();
    }
    const double step = std::max(result_.step_seconds, 1e-15);
    for (int r = 0; r < resources_.count(); ++r) {
      if (amounts[r] > 0) result_.resources.push_back({resources_.name(r), amounts[r], amounts[r] / (resources_.capacities()[r] * step)});
    }
    for (int rank = 0; rank < program_.ranks; ++rank) {
      if (compute[rank] > 0) result_.resources.push_back({cat("compute of rank ", rank), compute[rank], compute[rank] / step});
    }
    std::stable_sort(result_.resources.begin(), result_.resources.end(), [](const auto& a, const auto& b) { return a.share > b.share; });
  }

  const Program& program_;
  const program::Timeline& timeline_;
  program::Resources resources_;
  Simulation result_;
};

}  // namespace

Simulation simulate(const Program& program, const CostTable& table, SimulationOptions options) {
  program::Timeline timeline(program, table, options, kSteps);
  timeline.run();
  return Report(program, table, timeline).make();
}

std::string bound_by(const Simulation& simulation) { return simulation.resources.empty() ? "nothing" : simulation.resources.front().name; }

}  // namespace abi_1
}  // namespace oom
