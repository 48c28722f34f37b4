#include "program/trace.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "program/lane_order.h"

namespace oom::program {
namespace {

using nlohmann::json;

bool recorded(const StageTime& time) { return time.end > 0; }

/// What the stage draws, by the names of Cost; what it does not draw is left out.
json features_of(const Cost& cost) {
  json features = json::object();
  const auto add = [&](const char* name, double amount) {
    if (amount != 0) features[name] = amount;
  };
  add("gemm_flops", cost.gemm_flops);
  add("attention_flops", cost.attention_flops);
  add("other_flops", cost.other_flops);
  add("hbm_bytes", cost.hbm_bytes);
  add("h2d_bytes", cost.h2d_bytes);
  add("d2h_bytes", cost.d2h_bytes);
  add("peer_bytes", cost.peer_bytes);
  add("update_parameters", cost.update_parameters);
  add("convert_parameters", cost.convert_parameters);
  add("tokens", cost.tokens);
  add("sequence_length", cost.sequence_length);
  if (const auto last = std::find_if(cost.host_bytes.rbegin(), cost.host_bytes.rend(), [](double bytes) { return bytes != 0; }); last != cost.host_bytes.rend()) {
    features["host_bytes"] = std::vector<double>(cost.host_bytes.begin(), last.base());
  }
  return features;
}

class Trace {
 public:
  explicit Trace(const Program& program) : program_(program) {}

  void add_processes(bool predicted) {
    for (const Stage& stage : program_.stages) {
      const int process = process_of(stage.lane, predicted), thread = static_cast<int>(stage.lane.lane);
      if (!named_.insert({{process, thread}, true}).second) continue;
      const std::string place = cat(is_pool_lane(stage.lane.lane) ? "node " : "rank ", stage.lane.index);
      metadata("process_name", process, 0, {{"name", cat(predicted ? "predicted " : "measured ", place)}});
      metadata("process_sort_index", process, 0, {{"sort_index", process}});
      metadata("thread_name", process, thread, {{"name", lane_name(stage.lane.lane)}});
      metadata("thread_sort_index", process, thread, {{"sort_index", thread}});
    }
  }

  void add_stage(StageId id, StageTime time, bool predicted, json arguments) {
    const Stage& stage = program_.stages[id];
    arguments["stage"] = id;
    if (stage.layer >= 0) arguments["layer"] = stage.layer;  // the ends of the model have negative ones
    if (stage.part != kNone) arguments["part"] = stage.part;
    if (stage.rank != kNone) arguments["rank"] = stage.rank;
    std::string name = program_.kinds[stage.kind];
    if (stage.layer >= 0) name += cat(" ", stage.layer);
    events_.push_back({{"ph", "X"}, {"name", name}, {"cat", program_.kinds[stage.kind]}, {"pid", process_of(stage.lane, predicted)},
                       {"tid", static_cast<int>(stage.lane.lane)}, {"ts", time.start * 1e6}, {"dur", time.seconds() * 1e6}, {"args", std::move(arguments)}});
  }

  std::string text() { return json{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events_)}}.dump(); }

 private:
  // Measured and predicted processes of a place stand side by side; nodes come after ranks.
  int process_of(LaneId lane, bool predicted) const {
    const int place = is_pool_lane(lane.lane) ? program_.ranks + lane.index : lane.index;
    return 2 * place + (predicted ? 2 : 1);
  }
  void metadata(const char* what, int process, int thread, json arguments) {
    events_.push_back({{"ph", "M"}, {"name", what}, {"pid", process}, {"tid", thread}, {"args", std::move(arguments)}});
  }

  const Program& program_;
  json events_ = json::array();
  std::map<std::pair<int, int>, bool> named_;
};

// The first start on a compute lane, or on any lane where nothing computes.
double first_start(const Program& program, const std::vector<StageTime>& stages, bool predicted, bool any_lane) {
  double first = std::numeric_limits<double>::infinity();
  for (size_t id = 0; id < stages.size(); ++id) {
    if (!predicted && !recorded(stages[id])) continue;
    if (any_lane || program.stages[id].lane.lane == Lane::kCompute) first = std::min(first, stages[id].start);
  }
  if (first < std::numeric_limits<double>::infinity()) return first;
  return any_lane ? 0 : first_start(program, stages, predicted, true);
}

}  // namespace

std::string chrome_trace(const Program& program, const Simulation* predicted, std::span<const MeasuredStep> measured) {
  Trace trace(program);
  double zero = std::numeric_limits<double>::infinity();
  for (const MeasuredStep& step : measured) zero = std::min(zero, first_start(program, step.stages, false, true));
  // What the prediction is shifted by, onto the clock of the measured steps. It begins with what was prefetched during the step before, and
  // viewers drop what comes before 0.
  double shift = 0;
  if (predicted != nullptr) {
    OOM_CHECK_EQ(predicted->stages.size(), program.stages.size(), "a simulation of another program");
    if (!measured.empty()) shift = first_start(program, measured.back().stages, false, false) - first_start(program, predicted->stages, true, false);
    zero = std::min(zero, first_start(program, predicted->stages, true, true) + shift);
  }
  if (!measured.empty()) trace.add_processes(false);
  for (const MeasuredStep& step : measured) {
    OOM_CHECK_EQ(step.stages.size(), program.stages.size(), "times of another program");
    for (size_t id = 0; id < step.stages.size(); ++id) {
      const StageTime time = step.stages[id];
      if (!recorded(time)) continue;
      json arguments{{"step", step.step}, {"cost", features_of(program.stages[id].cost)}};
      if (predicted != nullptr) arguments["predicted_ms"] = predicted->stages[id].seconds() * 1e3;
      if (time.launch_end > 0) {  // how far ahead of the device the host was, and how long it took
        arguments["launched_ms_before"] = (time.start - time.launch_end) * 1e3;
        arguments["launch_ms"] = (time.launch_end - time.launch_start) * 1e3;
      }
      trace.add_stage(static_cast<StageId>(id), {time.start - zero, time.end - zero}, false, std::move(arguments));
    }
  }
  if (predicted != nullptr) {
    trace.add_processes(true);
    for (size_t id = 0; id < program.stages.size(); ++id) {
      const StageTime time = predicted->stages[id];
      trace.add_stage(static_cast<StageId>(id), {time.start + shift - zero, time.end + shift - zero}, true, json::object());
    }
  }
  return trace.text();
}

std::vector<KindComparison> compare_kinds(const Program& program, const Simulation& predicted, const MeasuredStep& measured) {
  OOM_CHECK_EQ(predicted.stages.size(), program.stages.size(), "a simulation of another program");
  OOM_CHECK_EQ(measured.stages.size(), program.stages.size(), "times of another program");
  std::map<std::pair<Lane, KindId>, KindComparison> kinds;
  for (size_t id = 0; id < program.stages.size(); ++id) {
    const Stage& stage = program.stages[id];
    KindComparison& kind = kinds[{stage.lane.lane, stage.kind}];
    kind.lane = stage.lane.lane;
    kind.kind = stage.kind;
    ++kind.stages;
    kind.predicted_seconds += predicted.stages[id].seconds();
    kind.measured_seconds += measured.stages[id].seconds();
  }
  std::vector<KindComparison> result;
  for (const auto& entry : kinds) result.push_back(entry.second);
  std::stable_sort(result.begin(), result.end(), [](const auto& a, const auto& b) { return a.measured_seconds > b.measured_seconds; });
  return result;
}

std::vector<ExposedWait> exposed_waits(const Program& program, const MeasuredStep& measured) {
  const LaneOrder lanes(program);
  const std::vector<StageTime>& times = measured.stages;
  const double begin = first_start(program, times, false, true);
  // The last to end of the stages that `id` came after in this step.
  const auto cause_of = [&](StageId id) {
    StageId last = kNone;
    const auto consider = [&](StageId before) {
      if (recorded(times[before]) && (last == kNone || times[before].end > times[last].end)) last = before;
    };
    for (const Edge& edge : program.stages[id].after) {
      if (edge.distance == 0) consider(edge.stage);
    }
    if (const int position = lanes.position[id]; position > 0) consider(lanes.stages[lanes.lane[id]][position - 1]);
    return last;
  };
  std::map<std::pair<Lane, KindId>, double> seconds;
  for (int rank = 0; rank < program.ranks; ++rank) {
    double free = begin;
    for (const StageId stage : lanes.stages[lane_index(program, {Lane::kCompute, rank})]) {
      if (!recorded(times[stage])) continue;
      double until = times[stage].start;
      for (StageId at = cause_of(stage); at != kNone && until > free; at = cause_of(at)) {
        const double from = std::max(free, times[at].start);
        if (from < until) seconds[{program.stages[at].lane.lane, program.stages[at].kind}] += (until - from) / program.ranks;
        until = std::min(until, from);
      }
      free = std::max(free, times[stage].end);
    }
  }
  std::vector<ExposedWait> waits;
  for (const auto& [key, value] : seconds) waits.push_back({key.first, key.second, value});
  std::stable_sort(waits.begin(), waits.end(), [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  return waits;
}

std::string describe(const Program& program, const Simulation& predicted, const MeasuredStep& measured, double measured_step_seconds) {
  char line[200];
  std::snprintf(line, sizeof line, "%-46s %7s %14s %14s\n", "milliseconds", "stages", "predicted", "measured");
  std::string text = line;
  std::snprintf(line, sizeof line, "%-46s %7s %14.3f %14.3f\n", "step", "", predicted.step_seconds * 1e3, measured_step_seconds * 1e3);
  text += line;
  for (const KindComparison& kind : compare_kinds(program, predicted, measured)) {
    const std::string name = cat(lane_name(kind.lane), " ", program.kinds[kind.kind]);
    std::snprintf(line, sizeof line, "%-46s %7d %14.3f %14.3f\n", name.c_str(), kind.stages, kind.predicted_seconds * 1e3, kind.measured_seconds * 1e3);
    text += line;
  }
  std::vector<ExposedWait> waits = exposed_waits(program, measured);
  const auto seconds_of = [](const std::vector<ExposedWait>& all, const ExposedWait& one) {
    const auto found = std::find_if(all.begin(), all.end(), [&](const ExposedWait& wait) { return wait.lane == one.lane && wait.kind == one.kind; });
    return found == all.end() ? 0 : found->seconds;
  };
  const std::vector<ExposedWait> seen = waits;
  for (const ExposedWait& wait : predicted.waits) {
    if (seconds_of(seen, wait) == 0) waits.push_back({wait.lane, wait.kind, 0});
  }
  std::snprintf(line, sizeof line, "\n%-46s %7s %14s %14s\n", "compute stands still for, a rank", "", "predicted", "measured");
  text += line;
  for (const ExposedWait& wait : waits) {
    const std::string name = cat(lane_name(wait.lane), " ", program.kinds[wait.kind]);
    std::snprintf(line, sizeof line, "%-46s %7s %14.3f %14.3f\n", name.c_str(), "", seconds_of(predicted.waits, wait) * 1e3, wait.seconds * 1e3);
    text += line;
  }
  return text;
}

}  // namespace oom::program
