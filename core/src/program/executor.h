/// Runs a program, step after step. An executor owns the program, its actions and the threads of its lanes.
///
/// Steps overlap: stages of step t+1 start while updates of step t still run, as far as edges allow, at most two steps at once.
/// One controlling thread calls run_step() and drain(); abort() may come from any thread. After a failure the executor only
/// reports it again; destroying it waits for actions that are still running, which poll StageContext::abort.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "oom/error.h"
#include "oom/program.h"
#include "oom/simulator.h"

namespace oom::program {

struct ExecutorOptions {
  /// The run fails, naming the stages that did not finish, when nothing completes for this long although work is there. 0: never.
  std::chrono::milliseconds watchdog{0};
  /// Called first in every thread: sets device, inference mode, affinity, name. A rank's issuing thread on a CUDA device, which runs
  /// the actions of all its stream lanes, calls it with {issue, rank}.
  std::function<void(LaneId)> thread_started;
  /// Wraps every action that is not null: sets stream guards and the like, and calls the action once.
  std::function<void(StageContext&, const Action&)> scope;
  /// Called before every stage, when it may start: delays in tests.
  std::function<void(const StageContext&)> before_stage;
  /// Called once when the run fails, by whichever thread noticed, with the message and exit status that run_step() will throw: aborts
  /// barriers and communicators in which others wait. May still run when run_step() throws; has returned when the executor is destroyed.
  std::function<void(const std::string& message, ExitCode code)> on_failure;
};

/// Seconds on the process's steady clock, which the executors' stage times are on.
double now_seconds();

class Executor {
 public:
  virtual ~Executor();

  virtual const Program& program() const = 0;
  /// Begins a step; actions see its number. Returns when its stages on the lanes of ranks have run (on the CPU device) or have been
  /// issued (on CUDA), and its step results are complete. Throws what a stage threw, with rank, layer, stage and step in the message.
  virtual void run_step(int64_t step) = 0;
  /// Returns when everything issued so far is complete, pools and devices included. Throws as run_step() does.
  virtual void drain() = 0;
  /// Makes the run fail with `reason`.
  virtual void abort(const std::string& reason) = 0;
  /// Switches the recording of stage times for the steps to come. Off at first.
  virtual void record_times(bool on) = 0;
  /// Returns when each stage of the last step ran, by StageId; zeros where nothing was recorded. Call drain() first.
  virtual std::vector<StageTime> stage_times() = 0;
};

/// Every lane is a thread; members of a collective leave it together.
std::unique_ptr<Executor> make_cpu_executor(BuiltProgram built, ExecutorOptions options = {});

}  // namespace oom::program
