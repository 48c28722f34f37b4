#include "program/stage_runner.h"

#include <pthread.h>

#include <algorithm>

namespace oom::program {

Executor::~Executor() = default;

double now_seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

StageRunner::StageRunner(BuiltProgram built, ExecutorOptions given)
    : program(std::move(built.program)), actions(std::move(built.actions)), options(std::move(given)), lanes(program),
      progress(lanes.lane_count() + 1, options.on_failure), acting_(static_cast<size_t>(lanes.lane_count())) {
  OOM_CHECK_EQ(actions.size(), program.stages.size(), "actions and stages");
}

StageRunner::~StageRunner() { stop_watchdog(); }

int64_t StageRunner::open_step(int64_t step) {
  const int64_t index = progress.started(gate());
  for (int lane = 0; lane < lanes.lane_count(); ++lane) progress.wait_completed(lane, (index - 1) * lanes.length(lane));
  steps_[index % 2] = step;
  progress.add_started(gate());
  return index;
}

void StageRunner::run(StageId id, int64_t index, void* stream) {
  guard(id, index, [&] {
    const Stage& stage = program.stages[id];
    StageContext context{&stage, steps_[index % 2].load(), stage.rank, stream, &progress.stop_flag()};
    std::atomic<bool>& acting = acting_[lanes.lane[id]];
    acting = true;
    if (options.before_stage) options.before_stage(context);
    if (progress.stopped()) throw Stopped{};
    if (actions[id]) {
      if (options.scope) options.scope(context, actions[id]);
      else actions[id](context);
    }
    acting = false;
  });
}

void StageRunner::finish(const std::function<void()>& wait) {
  progress.raise_failure();
  try {
    wait();
  } catch (const Stopped&) {
    progress.raise_failure();
    throw Error("the executor was stopped while a step ran");
  } catch (const Error& error) {
    progress.fail(error.what(), error.exit_code());
    progress.raise_failure();
    throw;
  }
}

void StageRunner::guard(StageId id, int64_t index, const std::function<void()>& body) {
  const auto where = [&] { return cat("step ", steps_[index % 2].load(), ", ", stage_name(program, id), ": "); };
  try {
    body();
    return;
  } catch (const Stopped&) {
    throw;
  } catch (const Error& error) {
    progress.fail(where() + error.what(), error.exit_code());
  } catch (const std::exception& error) {
    progress.fail(where() + error.what(), ExitCode::kDevice);
  } catch (...) {
    progress.fail(where() + "threw something that is no std::exception", ExitCode::kBug);
  }
  throw Stopped{};
}

void StageRunner::thread_body(LaneId lane, const std::function<void()>& body, const std::function<void()>& prepare) {
  const std::string name = cat(is_pool_lane(lane.lane) ? "n" : "r", lane.index, ".", lane_name(lane.lane)).substr(0, 15);
  pthread_setname_np(pthread_self(), name.c_str());
  try {
    if (prepare) prepare();
    if (options.thread_started) options.thread_started(lane);
    body();
  } catch (const Stopped&) {
  } catch (const Error& error) {
    progress.fail(cat("thread of ", lane_id_name(lane), ": ", error.what()), error.exit_code());
  } catch (const std::exception& error) {
    progress.fail(cat("thread of ", lane_id_name(lane), ": ", error.what()), ExitCode::kDevice);
  }
}

void StageRunner::start_watchdog(std::function<void()> refresh) {
  if (options.watchdog.count() == 0) return;
  watchdog_ = std::thread([this, refresh = std::move(refresh)] { watch(refresh); });
}

void StageRunner::stop_watchdog() {
  if (!watchdog_.joinable()) return;
  {
    const std::lock_guard lock(watchdog_mutex_);
    watchdog_stopping_ = true;
  }
  watchdog_stop_.notify_all();
  watchdog_.join();
}

void StageRunner::watch(const std::function<void()>& refresh) {
  using Clock = std::chrono::steady_clock;
  int64_t last = -1;
  auto since = Clock::now();
  std::unique_lock lock(watchdog_mutex_);
  while (!watchdog_stop_.wait_for(lock, options.watchdog / 8 + std::chrono::milliseconds(1), [&] { return watchdog_stopping_; })) {
    if (progress.stopped()) return;
    if (refresh) refresh();
    int64_t now = 0;
    for (int lane = 0; lane <= lanes.lane_count(); ++lane) now += progress.started(lane) + progress.completed(lane);
    const std::string waiting = outstanding();
    if (now != last || waiting.empty()) {
      last = now;
      since = Clock::now();
    } else if (Clock::now() - since >= options.watchdog) {
      progress.fail(cat("watchdog: nothing finished for ", options.watchdog.count() / 1000.0, " s; ", waiting), ExitCode::kDevice);
      return;
    }
  }
}

std::string StageRunner::outstanding() const {
  const int64_t steps = opened();
  std::string running, waiting;
  for (int lane = 0; lane < lanes.lane_count(); ++lane) {
    const int64_t length = lanes.length(lane), completed = progress.completed(lane);
    if (completed >= steps * length) continue;
    const StageId stage = lanes.stages[lane][completed % length];
    const int64_t step = steps_[(completed / length) % 2].load();
    std::string& list = progress.started(lane) > completed || acting_[lane] ? running : waiting;
    list += cat(list.empty() ? "" : "; ", "step ", step, ", ", stage_name(program, stage));
  }
  if (!running.empty()) return "running: " + running;
  return waiting.empty() ? "" : "waiting: " + waiting;
}

}  // namespace oom::program
