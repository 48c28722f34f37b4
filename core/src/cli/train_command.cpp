#include "cli/command_line.h"
#include "runtime/interrupt.h"
#include "runtime/trainer.h"

namespace oom::cli {

int run_train(const CommandLine& line) {
  const runtime::InterruptGuard interrupts;
  runtime::Session session(line.path, line.overrides);
  return static_cast<int>(runtime::train(session, line.has("resume")));
}

}  // namespace oom::cli
