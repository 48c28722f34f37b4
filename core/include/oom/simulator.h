/// Predicts how a program runs: when each stage of a steady step starts and ends, and what bounds the step.
///
/// Unrolls three steps. Lanes run in order, edges and collectives hold, a rank's issuing thread blocks in issue stages and before
/// stages that wait for pools, unless their streams do; stages active at once share the rates of the cost table. Needs no device;
/// microseconds a stage.
#pragma once

#include <string>
#include <vector>

#include "oom/cost_table.h"

namespace oom {
inline namespace abi_1 {

/// Seconds on one clock: the simulator's, or the executor's.
struct StageTime {
  double start = 0;
  double end = 0;
  double launch_start = 0;  ///< when the host began to enqueue a measured stage of a stream lane, and had; 0: no such stage
  double launch_end = 0;
  double seconds() const { return end - start; }
};

/// Compute lanes stood still while stages of this kind, on lanes of this sort, worked: the stages waited for, and those that these
/// had waited for in turn.
struct ExposedWait {
  Lane lane = Lane::kCompute;
  KindId kind = kNone;
  double seconds = 0;  // in one step, mean over ranks
};

struct KindTime {
  Lane lane = Lane::kCompute;
  KindId kind = kNone;
  int32_t stages = 0;
  double seconds = 0;  // sum over all stages of the step
};

struct ResourceUse {
  std::string name;     // "host_dram of numa 0"
  double amount = 0;    // a step
  double share = 0;     // of what the resource could give in the step
};

/// A link of the chain that bounds the step: `stage` of the step `step_before` steps earlier.
struct CriticalLink {
  StageId stage = kNone;
  int32_t steps_before = 0;
  StageTime time;
};

struct Simulation {
  /// Time from the end of one step on the compute lanes to the end of the next, once steps follow each other steadily.
  double step_seconds = 0;
  /// By StageId, of the third step; 0 is the end of the second one on the compute lanes, so what is prefetched starts before 0.
  std::vector<StageTime> stages;
  std::vector<CriticalLink> critical_path;  // from its first link to the last stage of the step
  std::vector<ExposedWait> waits;           // longest first
  std::vector<KindTime> busy;               // longest first
  std::vector<ResourceUse> resources;       // highest share first
};

struct SimulationOptions {
  /// Stages of a rank are launched by one thread in emission order (CUDA). False: every lane for itself (the CPU device).
  bool issuing_threads = true;
};

/// Throws Error when the program cannot go on (the verifier says why).
OOM_API Simulation simulate(const Program& program, const CostTable& table, SimulationOptions options = {});
/// Returns the simulation as text: step time, waits by cause and by stage, busy kinds, resources, and the critical path by stage and in order.
OOM_API std::string describe(const Program& program, const Simulation& simulation);
/// Returns the name of what bounds the step: the resource or lane with the highest share, "host_dram of numa 0".
OOM_API std::string bound_by(const Simulation& simulation);

}  // namespace abi_1
}  // namespace oom
