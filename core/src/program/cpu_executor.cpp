#include "program/stage_runner.h"

namespace oom::program {
namespace {

class CpuExecutor final : public Executor {
 public:
  CpuExecutor(BuiltProgram built, ExecutorOptions options) : runner_(std::move(built), std::move(options)), members_(runner_.program.collectives.size()) {
    const auto& stages = runner_.program.stages;
    for (size_t id = 0; id < stages.size(); ++id) {
      if (stages[id].collective != kNone) members_[stages[id].collective].push_back(static_cast<StageId>(id));
    }
    for (auto& times : times_) times.resize(stages.size());
    for (int lane = 0; lane < runner_.lanes.lane_count(); ++lane) {
      if (runner_.lanes.length(lane) == 0) continue;
      threads_.emplace_back([this, lane] { runner_.thread_body(lane_at(runner_.program, lane), [&] { work(lane); }); });
    }
    runner_.start_watchdog(nullptr);
  }

  ~CpuExecutor() override {
    runner_.progress.stop();
    for (std::thread& thread : threads_) thread.join();
  }

  const Program& program() const override { return runner_.program; }

  void run_step(int64_t step) override {
    runner_.finish([&] {
      const int64_t index = runner_.open_step(step);
      for (int lane = 0; lane < runner_.lanes.lane_count(); ++lane) {
        if (!is_pool_lane(lane_at(program(), lane).lane)) runner_.progress.wait_completed(lane, (index + 1) * runner_.lanes.length(lane));
      }
      for (size_t id = 0; id < program().stages.size(); ++id) {
        if (!program().stages[id].step_result) continue;
        runner_.progress.wait_completed(runner_.lanes.lane[id], runner_.count(static_cast<StageId>(id), index));
      }
    });
  }

  void drain() override {
    runner_.finish([&] {
      const int64_t steps = runner_.opened();
      for (int lane = 0; lane < runner_.lanes.lane_count(); ++lane) runner_.progress.wait_completed(lane, steps * runner_.lanes.length(lane));
    });
  }

  void abort(const std::string& reason) override { runner_.progress.fail(reason, ExitCode::kDevice); }
  void record_times(bool on) override { recording_.store(on, std::memory_order_relaxed); }
  std::vector<StageTime> stage_times() override {
    const int64_t steps = runner_.opened();
    return steps == 0 ? std::vector<StageTime>(program().stages.size()) : times_[(steps - 1) % 2];
  }

 private:
  void work(int lane) {
    const auto& stages = runner_.lanes.stages[lane];
    for (int64_t index = 0;; ++index) {
      runner_.progress.wait_started(runner_.gate(), index + 1);
      for (StageId stage : stages) run_stage(lane, stage, index);
    }
  }

  void run_stage(int lane, StageId id, int64_t index) {
    const Stage& stage = program().stages[id];
    for (const Edge& edge : stage.after) {
      if (index < edge.distance) continue;
      runner_.progress.wait_completed(runner_.lanes.lane[edge.stage], runner_.count(edge.stage, index - edge.distance));
    }
    const bool recording = recording_.load(std::memory_order_relaxed);
    StageTime& time = times_[index % 2][id];
    runner_.progress.add_started(lane);
    time.start = recording ? now_seconds() : 0;
    runner_.run(id, index, nullptr);
    if (stage.collective != kNone) {
      for (StageId member : members_[stage.collective]) {
        runner_.progress.wait_started(runner_.lanes.lane[member], runner_.count(member, index));
      }
    }
    time.end = recording ? now_seconds() : 0;
    runner_.progress.add_completed(lane);
  }

  StageRunner runner_;
  std::vector<std::vector<StageId>> members_;  // [collective]
  std::vector<StageTime> times_[2];            // by parity of the step's index
  std::atomic<bool> recording_{false};
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<Executor> make_cpu_executor(BuiltProgram built, ExecutorOptions options) {
  return std::make_unique<CpuExecutor>(std::move(built), std::move(options));
}

}  // namespace oom::program
