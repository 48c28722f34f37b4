/// What both executors do alike: runs the actions of stages, turns what they throw into the run's failure, counts and watches.
#pragma once

#include <thread>

#include "program/executor.h"
#include "program/lane_order.h"
#include "program/progress.h"

namespace oom::program {

class StageRunner {
 public:
  StageRunner(BuiltProgram built, ExecutorOptions options);
  ~StageRunner();

  const Program program;
  const std::vector<Action> actions;
  const ExecutorOptions options;
  const LaneOrder lanes;
  /// One lane more than the program has: gate() counts the steps that may run.
  Progress progress;

  int gate() const { return lanes.lane_count(); }
  /// Stages of its lane that are complete when `stage` of the `index`-th step is.
  int64_t count(StageId stage, int64_t index) const {
    const int lane = lanes.lane[stage];
    return index * lanes.length(lane) + lanes.position[stage] + 1;
  }
  /// Opens the next step under the number `step` and returns its index, counted from 0. Everything two steps before is complete.
  int64_t open_step(int64_t step);
  int64_t opened() const { return progress.started(gate()); }

  /// Runs the stage's action in this thread. When it throws, fails the run and throws Stopped.
  void run(StageId stage, int64_t index, void* stream);
  /// Calls `body`; what it throws becomes the run's failure, told as the stage's, and Stopped is thrown.
  void guard(StageId stage, int64_t index, const std::function<void()>& body);
  /// Calls `body` as the whole life of a thread: `prepare` and the option thread_started first, Stopped swallowed, anything else
  /// fails the run.
  void thread_body(LaneId lane, const std::function<void()>& body, const std::function<void()>& prepare = nullptr);

  /// Calls `wait` in the controlling thread. Throws the run's failure, whether it came before or stops the wait.
  void finish(const std::function<void()>& wait);

  /// Begins to watch; `refresh` is called before each look, to bring progress up to date. Does nothing when the option is 0.
  void start_watchdog(std::function<void()> refresh);
  void stop_watchdog();

 private:
  void watch(const std::function<void()>& refresh);
  /// Lists the stages that run, or those that wait when none runs; empty when nothing is outstanding.
  std::string outstanding() const;

  std::atomic<int64_t> steps_[2] = {0, 0};  // by parity of the index
  std::vector<std::atomic<bool>> acting_;   // [lane]: a thread is inside an action; on CUDA a stage counts as started only after it
  std::thread watchdog_;
  std::mutex watchdog_mutex_;
  std::condition_variable watchdog_stop_;
  bool watchdog_stopping_ = false;
};

}  // namespace oom::program
