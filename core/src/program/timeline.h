/// The discrete-event run behind the simulator: which instance of a stage starts, at what speed it flows, when it ends, and why then.
#pragma once

#include <vector>

#include "oom/simulator.h"
#include "program/compute_clock.h"
#include "program/fair_shares.h"
#include "program/lane_order.h"
#include "program/resources.h"

namespace oom::program {

class Timeline {
 public:
  Timeline(const Program& program, const CostTable& table, SimulationOptions options, int steps);
  /// Runs to the end. Throws Error when stages are left that nothing can start.
  void run();

  StageTime time(int step, StageId stage) const { return times_[instance(step, stage)]; }
  /// When its work began: its start, or for a member of a collective the start of the last member.
  double work_begin(int instance) const { return work_begin_[instance]; }
  /// The instance whose completion let this one's work begin (for a collective: let its last member begin); kNone at the beginning.
  int cause(int instance) const { return cause_[instance]; }
  int instance(int step, StageId stage) const { return step * count_ + stage; }
  int step_of(int instance) const { return instance / count_; }
  StageId stage_of(int instance) const { return instance % count_; }

 private:
  struct Work {  // of a stage, the same in every step
    double fixed = 0;
    double compute = 0;
    double alone = 0;  // seconds of the flowing part by shared resources alone
    std::vector<Draw> draws;
    double step = 0;
  };
  enum class Phase { kFixed, kFlowing };
  struct Active {
    int instance;
    Phase phase;
    double remaining;  // seconds of the fixed phase, or the share of the flowing one
    Flow flow;
  };

  void prepare_dependencies();
  void start(int instance, int cause);
  void begin_work(int instance);
  void complete(int instance);
  void satisfied(int instance, int cause);
  void launch_satisfied(int instance, int cause);
  void advance_thread(int rank, int cause);
  void set_speeds();
  void pass(double seconds);
  void step_clock();

  const Program& program_;
  const CostTable& table_;
  SimulationOptions options_;
  LaneOrder lanes_;
  Resources resources_;
  FairShares shares_;
  int count_;
  int steps_;
  double now_ = 0;
  std::vector<Work> work_;
  std::vector<std::vector<Edge>> successors_;    // [stage] (stage, distance) that wait for its completion
  std::vector<std::vector<Edge>> launch_after_completion_, launch_after_launch_;  // [stage] whose launch waits for this one
  std::vector<std::vector<StageId>> threads_;    // [rank] stages that its issuing thread launches
  std::vector<size_t> thread_cursor_;
  std::vector<char> thread_inside_;              // [rank] it is in an issue stage
  std::vector<int> pending_, launch_pending_;    // [instance]
  std::vector<int> cause_, launch_cause_;
  std::vector<std::vector<StageId>> members_;    // [collective]
  std::vector<int> arrived_;                     // [step][collective]
  std::vector<StageTime> times_;
  std::vector<double> work_begin_;
  std::vector<Active> active_;
  std::vector<double> taken_sm_;                 // [rank]
  std::vector<ComputeClock> clocks_;             // [rank]
  std::vector<char> computes_;                   // [rank] a stage of its compute lane is active
  std::vector<Flow*> flows_;
  std::vector<int> ready_;                       // started at this moment, work not yet begun
  bool speeds_stale_ = true;
  int completed_ = 0;
};

}  // namespace oom::program
