#include "runtime/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <string_view>

#include "oom/error.h"

namespace oom::runtime {
namespace {

std::atomic<bool> training{false};
std::atomic<int> signals{0};

// Checkpoints are renamed into place when complete, so stopping at once damages nothing. Only what a signal handler may call is called.
void on_signal(int) {
  const bool first = signals.fetch_add(1) == 0;
  if (first && training) return;
  constexpr std::string_view kText = "interrupted: stopped at once; what the last checkpoint holds is safe\n";
  if (::write(STDERR_FILENO, kText.data(), kText.size()) < 0) {
  }
  _exit(static_cast<int>(ExitCode::kInterrupted));
}

}  // namespace

InterruptGuard::InterruptGuard() {
  signals = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

InterruptGuard::~InterruptGuard() { training = false; }

void InterruptGuard::training_begins() { training = true; }

bool InterruptGuard::requested() { return signals.load() > 0; }

}  // namespace oom::runtime
