/// Shows measured steps beside the predicted one: a trace for Perfetto or chrome://tracing, and a table by kind of stage.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "oom/simulator.h"

namespace oom::program {

/// One step as the executor saw it; stages that were not recorded have start and end 0.
struct MeasuredStep {
  int64_t step = 0;
  std::vector<StageTime> stages;  // by StageId
};

/// Returns the JSON of a trace: a process for each rank and node, once "measured" and, if `predicted` is given, once "predicted",
/// with a thread for each lane. Time 0 is the first start; the prediction is drawn beside the last measured step, its first
/// compute stage under the measured one. Every measured stage carries its predicted milliseconds and what it draws (`cost`, by the names of Cost).
std::string chrome_trace(const Program& program, const Simulation* predicted, std::span<const MeasuredStep> measured);

/// Seconds of all stages of one kind on one sort of lane in one step, all ranks together.
struct KindComparison {
  Lane lane = Lane::kCompute;
  KindId kind = kNone;
  int32_t stages = 0;
  double predicted_seconds = 0;
  double measured_seconds = 0;
};
/// Returns the kinds of a program, those with the most measured seconds first. Simulation and step are of the same program.
std::vector<KindComparison> compare_kinds(const Program& program, const Simulation& predicted, const MeasuredStep& measured);
/// Returns what the compute lanes stood still for in a measured step, as Simulation::waits says of the predicted one: the stage that ended last of those that a
/// stage waited for, and what that one had waited for in turn. What began before the step is not known and belongs to nobody.
std::vector<ExposedWait> exposed_waits(const Program& program, const MeasuredStep& measured);
/// Returns both as tables in milliseconds, under a line with predicted and measured step time.
std::string describe(const Program& program, const Simulation& predicted, const MeasuredStep& measured, double measured_step_seconds);

}  // namespace oom::program
