#include <cstdio>

#include "oom/simulator.h"

namespace oom {
inline namespace abi_1 {

namespace {

std::string row(const std::string& name, double milliseconds, const std::string& rest) {
  char line[160];
  std::snprintf(line, sizeof line, "  %-44s %10.3f ms  %s\n", name.c_str(), milliseconds, rest.c_str());
  return line;
}

}  // namespace

std::string describe(const Program& program, const Simulation& simulation) {
  const auto named = [&](Lane lane, KindId kind) { return cat(lane_name(lane), " ", program.kinds[kind]); };
  std::string text = row("step", simulation.step_seconds * 1e3, "bound by " + bound_by(simulation));
  text += "compute waits for (mean over ranks)\n";
  for (const ExposedWait& wait : simulation.waits) text += row(named(wait.lane, wait.kind), wait.seconds * 1e3, "");
  text += "busy (all ranks)\n";
  for (const KindTime& kind : simulation.busy) text += row(named(kind.lane, kind.kind), kind.seconds * 1e3, cat(kind.stages, " stages"));
  text += "resources\n";
  for (const ResourceUse& use : simulation.resources) {
    char line[120];
    std::snprintf(line, sizeof line, "  %-44s %9.1f %%\n", use.name.c_str(), use.share * 100);
    text += line;
  }
  text += "critical path\n";
  for (size_t i = 0; i < simulation.critical_path.size();) {
    const CriticalLink& first = simulation.critical_path[i];
    const Stage& stage = program.stages[first.stage];
    double seconds = 0;
    size_t links = 0;
    for (; i < simulation.critical_path.size(); ++i, ++links) {
      const Stage& next = program.stages[simulation.critical_path[i].stage];
      if (next.kind != stage.kind || next.lane.lane != stage.lane.lane) break;
      seconds += simulation.critical_path[i].time.seconds();
    }
    text += row(named(stage.lane.lane, stage.kind), seconds * 1e3, links > 1 ? cat(links, " stages from layer ", stage.layer) : cat("layer ", stage.layer));
  }
  return text;
}

}  // namespace abi_1
}  // namespace oom
