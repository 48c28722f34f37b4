/// events.jsonl: what happened to a run besides its steps, one JSON object an event: "start", "checkpoint", "end". Grows over resumed runs.
#pragma once

#include "observe/json_lines.h"

namespace oom::observe {

class RunJournal {
 public:
  explicit RunJournal(const std::filesystem::path& path) : lines_(path) {}
  /// `steps` is the last one to train.
  void started(int64_t after_step, int64_t steps) const;
  void saved(int64_t step, const std::string& checkpoint, double seconds) const;
  /// `status`: "done", "interrupted", "diverged" or "failed"; `message` is the error's.
  void ended(int64_t step, const std::string& status, const std::string& message = {}) const;

 private:
  JsonLines lines_;
};

}  // namespace oom::observe
