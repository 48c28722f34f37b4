/// Lets a program's stages happen, as far as lanes, edges, collectives and issuing threads allow, over several steps: no times,
/// only what can start and complete after what.
#pragma once

#include <string>
#include <vector>

#include "program/lane_order.h"

namespace oom::program {

/// One stage of one unrolled step.
struct Instance {
  int step = 0;
  StageId stage = kNone;
};

class UnrolledRun {
 public:
  /// With `issuing_threads`, a rank's stages on stream lanes and its issue stages are launched by one thread in emission order, which
  /// blocks in issue stages and before stream stages that wait for pools, for issue stages, or for unlaunched work of another rank.
  UnrolledRun(const Program& program, const LaneOrder& lanes, int steps, bool issuing_threads);

  /// Runs until nothing can happen any more. Returns the instances at which lanes or issuing threads are stuck; empty when all is done.
  std::vector<Instance> run();

  /// True when `before` has completed whenever `after` starts. Only after a run() that returned nothing.
  bool ordered(Instance before, Instance after) const;

 private:
  size_t index(Instance at) const { return static_cast<size_t>(at.step) * program_.stages.size() + static_cast<size_t>(at.stage); }
  bool edges_done(Instance at) const;
  bool can_launch(Instance at) const;
  bool advance_thread(int rank);
  bool advance_lane(int lane);
  void start(Instance at);
  bool try_complete(Instance at);

  const Program& program_;
  const LaneOrder& lanes_;
  int steps_;
  size_t width_;
  std::vector<std::vector<StageId>> members_;         // [collective]
  std::vector<std::vector<StageId>> thread_stages_;   // [rank], empty without issuing threads
  std::vector<size_t> thread_cursor_;                 // [rank] over all steps
  std::vector<size_t> lane_cursor_;                   // [lane] over all steps
  std::vector<char> launched_, started_, completed_;  // [instance]
  std::vector<int32_t> start_clock_, end_clock_;      // [instance][lane]: stages of that lane known to be complete
};

}  // namespace oom::program
