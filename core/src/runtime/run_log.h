/// What a run writes into its folder as it goes: metrics and their TensorBoard mirror, tokens by expert, traces, and a journal of starts,
/// checkpoints and its end. One thread, the trainer's.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "observe/event_file.h"
#include "observe/metrics_log.h"
#include "observe/run_journal.h"
#include "program/trace.h"
#include "runtime/engine.h"
#include "runtime/planner.h"

namespace oom::runtime {

/// Files and folders that a run leaves in its folder, checkpoints included: what a run that replaces it removes.
const std::vector<std::string>& run_files();

class RunLog {
 public:
  /// Begins the log of a run that goes on after step `done`: drops what it will tell again, and writes run.json.
  RunLog(std::filesystem::path folder, Session& session, const PlannedRun& planned, int64_t done);

  void step(const observe::StepMetrics& metrics, const StepResult& result);
  /// Writes stage_kinds.json and stage_kinds.txt: a recorded step by kind of stage.
  void stage_kinds(const Program& program, int64_t step, const std::vector<StageTime>& stages, double step_seconds);
  /// The same, and draws trace.json anew, so that an interrupted run has one too.
  void trace(const Program& program, int64_t step, const std::vector<StageTime>& stages, double step_seconds);
  void saved(int64_t step, const std::filesystem::path& checkpoint, double seconds);
  /// `status` as RunJournal has it.
  void ended(const std::string& status);
  /// The same of a run that an error ends. Throws nothing: the error matters more.
  void failed(const std::exception& error) noexcept;

 private:
  std::filesystem::path folder_;
  const PlannedRun& planned_;
  int64_t last_step_;
  observe::JsonLines metrics_, expert_load_;
  observe::RunJournal journal_;
  std::optional<observe::EventFile> events_;
  std::vector<program::MeasuredStep> traced_;
};

}  // namespace oom::runtime
