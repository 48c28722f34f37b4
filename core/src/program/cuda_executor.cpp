#include "program/cuda_executor.h"

#include <optional>
#include <set>

#include "oom/log.h"
#include "program/cuda_handles.h"
#include "program/cuda_host_counts.h"
#include "program/stage_runner.h"

namespace oom::program {
namespace {

// Polls until `done`: at once while the answer is near, then less and less often. Throws Stopped when the run stops.
template <typename Done>
void poll(const Progress& progress, const Done& done) {
  for (int tries = 0; !done(); ++tries) {
    if (progress.stopped()) throw Stopped{};
    if (tries < 200) continue;
    std::this_thread::sleep_for(std::chrono::microseconds(tries < 1000 ? 5 : 50));
  }
}

class CudaExecutor final : public Executor {
 public:
  CudaExecutor(BuiltProgram built, ExecutorOptions options, CudaExecutorOptions cuda)
      : runner_(std::move(built), releasing(std::move(options))), cuda_(std::move(cuda)), host_counts_(runner_.lanes.lane_count()), events_(program().stages.size()),
        timing_(program().stages.size()), host_times_{std::vector<StageTime>(program().stages.size()), std::vector<StageTime>(program().stages.size())},
        rank_stages_(static_cast<size_t>(program().ranks)), clocks_(static_cast<size_t>(program().ranks)) {
    OOM_CHECK_EQ(cuda_.devices.size(), rank_stages_.size(), "a device for each rank");
    for (size_t id = 0; id < program().stages.size(); ++id) {
      const LaneId lane = program().stages[id].lane;
      if (!is_pool_lane(lane.lane)) rank_stages_[lane.index].push_back(static_cast<StageId>(id));
    }
    for (int32_t rank = 0; rank < program().ranks; ++rank) make_handles(rank);
    // A waiting stream may hold up what is launched behind it on its device, where streams share a hardware queue. Of one rank nothing that the stage waited for needs is launched
    // behind the wait, because emission order is an execution; of two ranks that share a device it may be.
    if (std::set<int>(cuda_.devices.begin(), cuda_.devices.end()).size() < cuda_.devices.size()) host_counts_.refuse_waits();
    for (int32_t rank = 0; rank < program().ranks; ++rank) {
      if (rank_stages_[rank].empty()) continue;
      start_thread({Lane::kIssue, rank}, [this, rank] { issue(rank); });
    }
    for (int lane = 0; lane < runner_.lanes.lane_count(); ++lane) {
      if (is_pool_lane(lane_at(program(), lane).lane) && runner_.lanes.length(lane) > 0) {
        start_thread(lane_at(program(), lane), [this, lane] { lead_pool(lane); });
      }
    }
    runner_.start_watchdog([this] { refresh(); });
  }

  ~CudaExecutor() override {
    runner_.progress.stop();
    host_counts_.release();
    for (std::thread& thread : threads_) thread.join();
    runner_.stop_watchdog();  // it looks at events, which end before the runner
  }

  const Program& program() const override { return runner_.program; }

  void run_step(int64_t step) override {
    runner_.finish([&] {
      // The step reuses events of the one two before, which must be over; that also keeps issuing from running away.
      settle(runner_.opened() - 1);
      const int64_t index = runner_.open_step(step);
      for (int lane = 0; lane < runner_.lanes.lane_count(); ++lane) {
        const int64_t all = (index + 1) * runner_.lanes.length(lane);
        const Lane kind = lane_at(program(), lane).lane;
        if (is_stream_lane(kind)) runner_.progress.wait_started(lane, all);
        else if (kind == Lane::kIssue) runner_.progress.wait_completed(lane, all);
      }
      for (size_t id = 0; id < program().stages.size(); ++id) {
        if (program().stages[id].step_result) wait_on_host(static_cast<StageId>(id), index);
      }
    });
  }

  void drain() override {
    runner_.finish([&] { settle(runner_.opened()); });
  }

  void abort(const std::string& reason) override { runner_.progress.fail(reason, ExitCode::kDevice); }
  void record_times(bool on) override { recording_.store(on); }

  std::vector<StageTime> stage_times() override {
    const int64_t index = runner_.opened() - 1;
    if (index < 0) return std::vector<StageTime>(program().stages.size());
    std::vector<StageTime> times = host_times_[index % 2];
    for (size_t id = 0; id < times.size(); ++id) {
      const Stage& stage = program().stages[id];
      if (!is_stream_lane(stage.lane.lane)) continue;
      const RankClock& clock = *clocks_[stage.lane.index];
      if (clock.recorded_index != index) {
        times[id] = {};
        continue;
      }
      times[id].start = clock.seconds_of(timing_[id]->start);
      times[id].end = clock.seconds_of(timing_[id]->end);
    }
    return times;
  }

 private:
  struct TwoEvents {
    CudaEvent by_parity[2];
  };
  struct TimingEvents {
    CudaEvent start{cudaEventDefault};
    CudaEvent end{cudaEventDefault};
  };
  // An event whose moment is known on the host's clock, taken anew each recorded step: elapsed times are single-precision.
  struct RankClock {
    explicit RankClock(int priority) : stream(priority) {}
    double seconds_of(const CudaEvent& event) const {
      float milliseconds = 0;
      OOM_CHECK_CUDA(cudaEventElapsedTime(&milliseconds, base.get(), event.get()));
      return base_seconds + 1e-3 * static_cast<double>(milliseconds);
    }
    CudaStream stream;
    CudaEvent base{cudaEventDefault};
    double base_seconds = 0;
    int64_t recorded_index = -1;
  };

  // When the run has failed, streams shall not wait for stages that never come: whoever waits for a stream would hang.
  ExecutorOptions releasing(ExecutorOptions options) {
    options.on_failure = [this, then = std::move(options.on_failure)](const std::string& message, ExitCode code) {
      host_counts_.release();
      if (then) then(message, code);
    };
    return options;
  }

  void make_handles(int32_t rank) {
    const DeviceScope device(cuda_.devices[rank]);
    int lowest = 0, highest = 0;
    OOM_CHECK_CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    for (int lane = 0; lane < kRankLanes; ++lane) {
      const LaneId id{static_cast<Lane>(lane), rank};
      if (!is_stream_lane(id.lane)) {
        streams_.push_back(nullptr);  // the issue lane
        continue;
      }
      if (cuda_.stream) {
        streams_.push_back(static_cast<cudaStream_t>(cuda_.stream(id)));
      } else {
        own_streams_.emplace_back(stream_priority(id.lane, lowest, highest));
        streams_.push_back(own_streams_.back().get());
      }
    }
    for (StageId id : rank_stages_[rank]) {
      if (is_stream_lane(program().stages[id].lane.lane)) events_[id].emplace();
    }
    clocks_[rank].emplace(highest);
  }

  void start_thread(LaneId lane, std::function<void()> body) {
    threads_.emplace_back([this, lane, body = std::move(body)] {
      runner_.thread_body(lane, body, [&] {
        if (!is_pool_lane(lane.lane)) OOM_CHECK_CUDA(cudaSetDevice(cuda_.devices[lane.index]));
      });
    });
  }

  const CudaEvent& event_of(StageId stage, int64_t index) const { return events_[stage]->by_parity[index % 2]; }
  cudaStream_t stream_of(StageId stage) const { return streams_[runner_.lanes.lane[stage]]; }

  // Waits in this thread until the stage is complete.
  void wait_on_host(StageId stage, int64_t index) {
    Progress& progress = runner_.progress;
    const int lane = runner_.lanes.lane[stage];
    const int64_t count = runner_.count(stage, index);
    if (!is_stream_lane(program().stages[stage].lane.lane)) {
      progress.wait_completed(lane, count);
      return;
    }
    progress.wait_started(lane, count);
    // The count is asked as well: the event may already belong to a later step, whose opening says that this one is over.
    poll(progress, [&] { return progress.completed(lane) >= count || event_of(stage, index).complete(); });
    progress.complete_up_to(lane, count);
  }

  // Returns when the first `steps` steps are complete on all lanes.
  void settle(int64_t steps) {
    if (steps <= 0) return;
    for (int lane = 0; lane < runner_.lanes.lane_count(); ++lane) {
      if (runner_.lanes.length(lane) > 0) wait_on_host(runner_.lanes.stages[lane].back(), steps - 1);
    }
  }

  // Makes `consumer`'s stream wait for a stage of this or another rank.
  void wait_on_stream(StageId consumer, StageId stage, int64_t index) {
    if (program().stages[stage].lane.index != program().stages[consumer].lane.index) {
      runner_.progress.wait_started(runner_.lanes.lane[stage], runner_.count(stage, index));
    }
    OOM_CHECK_CUDA(cudaStreamWaitEvent(stream_of(consumer), event_of(stage, index).get(), 0));
  }

  // The same for a stage of a pool, whose consumer need not have it complete when it is launched.
  void wait_for_pool(StageId consumer, StageId stage, int64_t index) {
    const int lane = runner_.lanes.lane[stage];
    const int64_t count = runner_.count(stage, index);
    if (runner_.progress.completed(lane) >= count || host_counts_.wait(stream_of(consumer), lane, count)) return;
    if (!told_of_host_waits_.exchange(true)) {
      log_warn("device: streams of GPU ", cuda_.devices[program().stages[consumer].lane.index],
               " cannot wait for the host's updates; launches do instead, and steps are slower where updates are late");
    }
    wait_on_host(stage, index);
  }

  void issue(int32_t rank) {
    for (int64_t index = 0;; ++index) {
      runner_.progress.wait_started(runner_.gate(), index + 1);
      const bool recording = recording_.load();
      if (recording) begin_recording(rank, index);
      for (StageId id : rank_stages_[rank]) {
        if (program().stages[id].lane.lane == Lane::kIssue) run_on_host(id, index);
        else launch(id, index, recording);
      }
    }
  }

  void lead_pool(int lane) {
    for (int64_t index = 0;; ++index) {
      runner_.progress.wait_started(runner_.gate(), index + 1);
      for (StageId id : runner_.lanes.stages[lane]) run_on_host(id, index);
    }
  }

  void run_on_host(StageId id, int64_t index) {
    for (const Edge& edge : program().stages[id].after) {
      if (index >= edge.distance) runner_.guard(id, index, [&] { wait_on_host(edge.stage, index - edge.distance); });
    }
    const int lane = runner_.lanes.lane[id];
    runner_.progress.add_started(lane);
    StageTime& time = host_times_[index % 2][id];
    const bool recording = recording_.load();
    time.start = recording ? now_seconds() : 0;
    runner_.run(id, index, nullptr);
    time.end = recording ? now_seconds() : 0;
    host_counts_.raise(lane, runner_.count(id, index));
    runner_.progress.add_completed(lane);
  }

  void launch(StageId id, int64_t index, bool recording) {
    StageTime& time = host_times_[index % 2][id];
    if (recording) time.launch_start = now_seconds();
    runner_.guard(id, index, [&] {
      for (const Edge& edge : program().stages[id].after) {
        if (index < edge.distance) continue;
        const Lane before = program().stages[edge.stage].lane.lane;
        if (is_stream_lane(before)) wait_on_stream(id, edge.stage, index - edge.distance);
        else if (is_pool_lane(before) && program().stages[id].waits_on_stream) wait_for_pool(id, edge.stage, index - edge.distance);
        else wait_on_host(edge.stage, index - edge.distance);
      }
      const cudaStream_t stream = stream_of(id);
      if (recording) timing_[id]->start.record(stream);
      runner_.run(id, index, stream);
      if (recording) timing_[id]->end.record(stream);
      events_[id]->by_parity[index % 2].record(stream);
    });
    if (recording) time.launch_end = now_seconds();
    runner_.progress.add_started(runner_.lanes.lane[id]);  // published: others may now wait on the event
  }

  void begin_recording(int32_t rank, int64_t index) {
    RankClock& clock = *clocks_[rank];
    for (StageId id : rank_stages_[rank]) {
      if (is_stream_lane(program().stages[id].lane.lane) && !timing_[id]) timing_[id].emplace();
    }
    // The base lies between two looks at the host's clock; when this thread was held up between them, try again.
    for (int tries = 0; tries < 20; ++tries) {
      const double before = now_seconds();
      clock.base.record(clock.stream.get());
      poll(runner_.progress, [&] { return clock.base.complete(); });
      const double after = now_seconds();
      clock.base_seconds = (before + after) / 2;
      if (after - before < 1e-4) break;
    }
    clock.recorded_index = index;
  }

  // For the watchdog: brings the completed counts of stream lanes up to what their events say.
  void refresh() {
    for (int lane = 0; lane < runner_.lanes.lane_count(); ++lane) {
      const int64_t length = runner_.lanes.length(lane);
      if (length == 0 || !is_stream_lane(lane_at(program(), lane).lane)) continue;
      const int64_t launched = runner_.progress.started(lane);
      for (int64_t next = runner_.progress.completed(lane); next < launched; ++next) {
        if (!event_of(runner_.lanes.stages[lane][next % length], next / length).complete()) break;
        runner_.progress.complete_up_to(lane, next + 1);
      }
    }
  }

  StageRunner runner_;
  CudaExecutorOptions cuda_;
  HostCounts host_counts_;
  std::atomic<bool> told_of_host_waits_{false};
  std::vector<CudaStream> own_streams_;
  std::vector<cudaStream_t> streams_;                   // [lane], of rank lanes
  std::vector<std::optional<TwoEvents>> events_;        // [stage], of stream lanes
  std::vector<std::optional<TimingEvents>> timing_;     // [stage], once times were recorded
  std::vector<StageTime> host_times_[2];                // by parity of the step's index
  std::vector<std::vector<StageId>> rank_stages_;       // [rank] in emission order
  std::vector<std::optional<RankClock>> clocks_;        // [rank]
  std::atomic<bool> recording_{false};
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<Executor> make_cuda_executor(BuiltProgram built, ExecutorOptions options, CudaExecutorOptions cuda) {
  return std::make_unique<CudaExecutor>(std::move(built), std::move(options), std::move(cuda));
}

}  // namespace oom::program
