#include "runtime/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

#include "oom/error.h"

namespace oom::runtime {
namespace {

std::atomic<int> signals{0};
struct sigaction old_int, old_term;

// Checkpoints are renamed into place when complete, so stopping at once damages nothing.
void on_signal(int) {
  if (signals.fetch_add(1) > 0) _exit(static_cast<int>(ExitCode::kInterrupted));
}

}  // namespace

InterruptGuard::InterruptGuard() {
  signals = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &old_int);
  sigaction(SIGTERM, &action, &old_term);
}

InterruptGuard::~InterruptGuard() {
  sigaction(SIGINT, &old_int, nullptr);
  sigaction(SIGTERM, &old_term, nullptr);
}

bool InterruptGuard::requested() { return signals.load() > 0; }

}  // namespace oom::runtime
