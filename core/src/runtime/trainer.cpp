#include "runtime/trainer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <optional>

#include "base/file.h"
#include "checkpoint/best_checkpoints.h"
#include "checkpoint/checkpoint_reader.h"
#include "hardware/process_memory.h"
#include "observe/progress_line.h"
#include "plan/plan_file.h"
#include "runtime/evaluation.h"
#include "runtime/interrupt.h"
#include "runtime/prepared_run.h"
#include "runtime/resume_check.h"
#include "runtime/run_checkpoint.h"
#include "runtime/run_log.h"
#include "runtime/schedule.h"

namespace oom::runtime {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int64_t kSummedStep = 20;  // after the start: late enough to be like all later ones

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// The folder of a run, held by one process at a time.
class RunFolder {
 public:
  // Refuses a folder that holds a run unless it is resumed or may be overwritten, and one that another process trains in.
  RunFolder(const config::Config& config, bool resume) : path_(config.output().dir), replaces_(!resume && (fs::exists(path_ / "metrics.jsonl") || fs::exists(path_ / "checkpoints"))) {
    if (replaces_ && !config.output().overwrite) {
      throw ConfigError(cat(config.where("output", "dir"), ": ", path_.string(), " holds a run already. Continue it with --resume, choose another folder, or replace it with --set output.overwrite=true"));
    }
    std::error_code error;
    fs::create_directories(path_, error);
    if (error) throw FileError(cat(path_.string(), ": the run folder cannot be made: ", error.message()));
    const std::string lock = (path_ / ".lock").string();
    lock_ = ::open(lock.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
    if (lock_ < 0) throw FileError(cat(lock, ": cannot be created: ", std::strerror(errno), "; check the folder's permissions"));
    if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
      const int busy = errno;
      ::close(lock_);
      // A file system without locks is no reason not to train.
      if (busy == EWOULDBLOCK) throw ConfigError(cat(config.where("output", "dir"), ": another oom process is training in ", path_.string(), "; wait for it, or choose another folder"));
      lock_ = -1;
    }
  }
  ~RunFolder() {
    if (lock_ >= 0) ::close(lock_);
  }
  RunFolder(const RunFolder&) = delete;

  const fs::path& path() const { return path_; }
  // Removes the run that this one replaces. Called when this one is known to start: a slip in a path must not cost the old checkpoints.
  void remove_replaced() const {
    if (!replaces_) return;
    for (const std::string& part : run_files()) fs::remove_all(path_ / part);
  }

 private:
  fs::path path_;
  bool replaces_;
  int lock_ = -1;
};

// The process's proportional set size. Counting hundreds of GiB takes the kernel a while, so it is asked now and then only.
class HostBytes {
 public:
  int64_t now() {
    if (bytes_ == 0 || seconds_since(asked_) > kInterval) {
      asked_ = Clock::now();
      bytes_ = hardware::process_pss_bytes();
    }
    return bytes_;
  }

 private:
  static constexpr double kInterval = 5.0;
  Clock::time_point asked_;
  int64_t bytes_ = 0;
};

// Evaluates the state that a step left. Nothing when an interruption cut it short.
std::optional<observe::EvaluationMetrics> evaluate_step(PreparedRun& run, observe::ProgressLine& progress) {
  const Clock::time_point start = Clock::now();
  const EvaluatedSamples samples = run.data().evaluated();
  const auto tell = [&](int64_t done, const Evaluation& so_far) {
    progress.end();
    log_info("eval: ", done, " of ", samples.count, " samples, loss ", so_far.loss, " so far");
  };
  const std::optional<Evaluation> evaluation = evaluate(run.engine(), run.planned().plan, samples, {.stop = InterruptGuard::requested, .progress = tell});
  if (!evaluation) return std::nullopt;
  return observe::EvaluationMetrics{.loss = evaluation->loss, .tokens = evaluation->tokens, .seconds = seconds_since(start)};
}

// Trains the steps after `done`. `checkpoint` is the last complete one, none so far when empty.
ExitCode train_steps(Session& session, PreparedRun& run, RunLog& log, const fs::path& checkpoints, int64_t done, fs::path& checkpoint) {
  const config::Config& config = session.config();
  const config::Train& settings = config.train();
  observe::ProgressLine progress(done + 1, settings.steps);
  InterruptGuard::training_begins();
  const auto save = [&](int64_t step, const std::optional<observe::EvaluationMetrics>& evaluation) {
    progress.end();
    const Clock::time_point start = Clock::now();
    run.engine().drain();
    CheckpointTexts texts{{kDataName, format_data_size(run.data().training())}};
    if (!run.came_in().empty()) texts[checkpoint::kSourceTensorsName] = run.came_in().format();
    if (evaluation) texts[checkpoint::kEvaluationName] = checkpoint::format_evaluation(evaluation->loss, evaluation->tokens);
    try {
      checkpoint = save_checkpoint(checkpoints, session, run.engine(), step, step * settings.global_batch, texts);
    } catch (const FileError& error) {
      // What the run has made since is gone; what it can go on from must be said.
      throw FileError(cat("checkpoint of step ", step, ": ", error.what(), "; ",
                          checkpoint.empty() ? "there is none before it, so that --resume has nothing to continue" : cat("--resume continues from ", checkpoint.string())));
    }
    log.saved(step, checkpoint, seconds_since(start));
    log_info("checkpoint: ", checkpoint.string(), " in ", seconds_since(start), " s");
  };

  HostBytes host_bytes;
  Clock::time_point last_end = Clock::now();
  int64_t saved = done;
  // One step of every run is recorded for its sums by kind of stage: two events more for each of its stages.
  const int64_t summed = std::min(done + kSummedStep, settings.steps);
  for (int64_t step = done + 1; step <= settings.steps; ++step) {
    run.engine().record_times(step == summed || config.output().traces(step));
    const StepResult result = run.engine().train_step(step, run.batches(step));
    if (settings.drain) run.engine().drain();
    observe::StepMetrics line;
    line.step = step;
    line.loss = result.loss();
    line.aux_loss = result.aux_loss;
    line.learning_rate = learning_rate(settings, step);
    line.grad_norm = result.grad_norm;
    line.tokens = settings.global_batch * config.data().sequence_length;
    line.gpu_peak_bytes = run.engine().gpu_peak_bytes();
    line.host_bytes = host_bytes.now();
    line.step_seconds = seconds_since(last_end);
    line.time = observe::unix_seconds();
    last_end = Clock::now();
    const bool regular = config.checkpoint().every > 0 && step % config.checkpoint().every == 0;
    const bool saves = regular || (step == settings.steps && config.checkpoint().at_end);
    const bool evaluates = (config.eval().every > 0 && step % config.eval().every == 0) || (saves && config.checkpoint().keep_best > 0);
    if (evaluates) {
      line.evaluation = evaluate_step(run, progress);
      last_end = Clock::now();
    }
    log.step(line, result);
    progress.show(line);
    if (step == summed || config.output().traces(step)) {
      const auto tell = config.output().traces(step) ? &RunLog::trace : &RunLog::stage_kinds;
      (log.*tell)(run.engine().training_program(), step, run.engine().stage_times(), line.step_seconds);
      last_end = Clock::now();
    }
    const bool stop = InterruptGuard::requested();
    if (stop || saves) {
      save(step, line.evaluation);
      saved = step;
      last_end = Clock::now();
    }
    if (stop) {
      log_info("interrupted after step ", step, "; continue with --resume");
      return ExitCode::kInterrupted;
    }
  }
  if (saved == done) run.engine().drain();
  return ExitCode::kDone;
}

}  // namespace

ExitCode train(Session& session, bool resume) {
  const config::Config& config = session.config();
  PlannedRun planned = make_plan(session);
  const RunFolder run_folder(config, resume);
  const fs::path& folder = run_folder.path();
  const fs::path checkpoints = folder / "checkpoints";
  std::unique_ptr<checkpoint::CheckpointReader> from;
  if (resume) {
    from = open_newest_checkpoint(checkpoints);
    if (!from) throw FileError(cat(checkpoints.string(), ": --resume found no complete checkpoint there. Start over with --set output.overwrite=true; damaged ones are named above"));
  }
  const std::string plan_text = plan::plan_toml(planned.plan, prediction_of(planned));
  log_info("plan: experts ", planned.plan.experts, ", activations ", planned.plan.activations, ", ", planned.plan.ranks, planned.plan.ranks == 1 ? " rank; " : " ranks; ", planned.evidence);

  PreparedRun run(session, std::move(planned), Purpose::kTrain, from.get());
  int64_t done = 0;
  fs::path checkpoint;  // the last complete one
  if (from) {
    run.restore(*from);
    done = from->state().step;
    checkpoint = from->folder();
    log_info("resume: ", from->folder().string(), ", step ", done);
    from.reset();
  } else {
    run.initialise();
  }
  run.engine().set_next_step(done + 1);
  run_folder.remove_replaced();
  base::replace_text_file(folder / "config.toml", config::resolved_toml(config));
  base::replace_text_file(folder / "plan.toml", plan_text);

  RunLog log(folder, session, run.planned(), done);
  try {
    const ExitCode code = train_steps(session, run, log, checkpoints, done, checkpoint);
    log.ended(code == ExitCode::kDone ? "done" : "interrupted");
    return code;
  } catch (const DivergedError& error) {
    log.failed(error);
    throw DivergedError(cat(error.what(), checkpoint.empty() ? ". There is no checkpoint yet" : cat(". The last checkpoint is good: ", checkpoint.string())));
  } catch (const std::exception& error) {
    log.failed(error);
    throw;
  }
}

}  // namespace oom::runtime
