#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <vector>

#include "oom/simulator.h"

namespace oom {
inline namespace abi_1 {

namespace {

std::string row(const std::string& name, double milliseconds, const std::string& rest) {
  char line[160];
  std::snprintf(line, sizeof line, "  %-44s %10.3f ms  %s\n", name.c_str(), milliseconds, rest.c_str());
  return line;
}

const char* cause(Lane lane) {
  switch (lane) {
    case Lane::kCompute: return "other ranks' compute";
    case Lane::kComm: return "traffic between GPUs";
    case Lane::kH2d: return "weights and inputs on their way in";
    case Lane::kD2h: return "gradients and inputs on their way out";
    case Lane::kD2hExpert: return "expert gradients on their way out";
    case Lane::kIssue: return "the launching thread";
    case Lane::kPrepare: return "weights being made on the host";
    case Lane::kUpdate: return "updates on the host";
  }
  return "";
}

using Kind = std::pair<Lane, KindId>;

// Sums by key, the largest first.
template <typename Key>
std::vector<std::pair<Key, double>> largest_first(const std::map<Key, double>& sums) {
  std::vector<std::pair<Key, double>> sorted(sums.begin(), sums.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return sorted;
}

// Equal neighbours drawn together; of a long chain the links that take longest.
std::string chain(const Program& program, const Simulation& simulation) {
  constexpr size_t kMostRows = 24;
  struct Run {
    double seconds;
    std::string text;
  };
  std::vector<Run> runs;
  for (size_t i = 0; i < simulation.critical_path.size();) {
    const Stage& stage = program.stages[simulation.critical_path[i].stage];
    double seconds = 0;
    size_t links = 0;
    for (; i < simulation.critical_path.size(); ++i, ++links) {
      const Stage& next = program.stages[simulation.critical_path[i].stage];
      if (next.kind != stage.kind || next.lane.lane != stage.lane.lane) break;
      seconds += simulation.critical_path[i].time.seconds();
    }
    runs.push_back({seconds, row(cat(lane_name(stage.lane.lane), " ", program.kinds[stage.kind]), seconds * 1e3, links > 1 ? cat(links, " stages from layer ", stage.layer) : cat("layer ", stage.layer))});
  }
  double least = -1;
  if (runs.size() > kMostRows) {
    std::vector<double> seconds;
    for (const Run& run : runs) seconds.push_back(run.seconds);
    std::nth_element(seconds.begin(), seconds.begin() + kMostRows - 1, seconds.end(), std::greater<>());
    least = seconds[kMostRows - 1];
  }
  std::string text;
  for (const Run& run : runs) {
    if (run.seconds >= least) text += run.text;
  }
  return text;
}

}  // namespace

std::string describe(const Program& program, const Simulation& simulation) {
  const auto named = [&](Lane lane, KindId kind) { return cat(lane_name(lane), " ", program.kinds[kind]); };
  std::string text = row("step", simulation.step_seconds * 1e3, "bound by " + bound_by(simulation));
  std::map<Lane, double> causes;
  for (const ExposedWait& wait : simulation.waits) causes[wait.lane] += wait.seconds;
  text += "compute waits for (mean over ranks)\n";
  for (const auto& [lane, seconds] : largest_first(causes)) text += row(cause(lane), seconds * 1e3, "");
  text += "of that, by stage\n";
  for (const ExposedWait& wait : simulation.waits) text += row(named(wait.lane, wait.kind), wait.seconds * 1e3, "");
  text += "busy (all ranks)\n";
  for (const KindTime& kind : simulation.busy) text += row(named(kind.lane, kind.kind), kind.seconds * 1e3, cat(kind.stages, " stages"));
  text += "resources\n";
  for (const ResourceUse& use : simulation.resources) {
    char line[120];
    std::snprintf(line, sizeof line, "  %-44s %9.1f %%\n", use.name.c_str(), use.share * 100);
    text += line;
  }
  std::map<Kind, double> path;
  for (const CriticalLink& link : simulation.critical_path) path[{program.stages[link.stage].lane.lane, program.stages[link.stage].kind}] += link.time.seconds();
  text += "critical path, by stage\n";
  for (const auto& [kind, seconds] : largest_first(path)) text += row(named(kind.first, kind.second), seconds * 1e3, "");
  text += "critical path, its longest links in order\n" + chain(program, simulation);
  return text;
}

}  // namespace abi_1
}  // namespace oom
