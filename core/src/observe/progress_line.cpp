#include "observe/progress_line.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/text.h"

namespace oom::observe {
namespace {

constexpr std::chrono::seconds kPlainInterval{5};

std::string duration(double seconds) {
  const int64_t whole = static_cast<int64_t>(std::llround(seconds));
  char text[48];
  if (whole >= 3600) {
    std::snprintf(text, sizeof text, "%lldh%02lldm", static_cast<long long>(whole / 3600), static_cast<long long>(whole / 60 % 60));
  } else {
    std::snprintf(text, sizeof text, "%lldm%02llds", static_cast<long long>(whole / 60), static_cast<long long>(whole % 60));
  }
  return text;
}

}  // namespace

ProgressLine::ProgressLine(int64_t first_step, int64_t last_step) : first_step_(first_step), last_step_(last_step), terminal_(isatty(STDERR_FILENO) == 1) {}
ProgressLine::~ProgressLine() { end(); }

void ProgressLine::show(const StepMetrics& metrics) {
  smooth_seconds_ = smooth_seconds_ == 0 ? metrics.step_seconds : 0.9 * smooth_seconds_ + 0.1 * metrics.step_seconds;
  const auto now = std::chrono::steady_clock::now();
  if (metrics.evaluation) {
    char text[64];
    std::snprintf(text, sizeof text, "  eval %.4f", metrics.evaluation->loss);
    evaluated_ = text;
  }
  const bool due = terminal_ || metrics.evaluation || metrics.step == first_step_ || metrics.step == last_step_ || now - last_shown_ >= kPlainInterval;
  if (!due) return;
  last_shown_ = now;
  const int64_t gpu = metrics.gpu_peak_bytes.empty() ? 0 : *std::max_element(metrics.gpu_peak_bytes.begin(), metrics.gpu_peak_bytes.end());
  char line[256];
  std::snprintf(line, sizeof line, "step %lld/%lld  loss %.4f%s  %.0f tokens/s  device %s  host %s  left %s", static_cast<long long>(metrics.step), static_cast<long long>(last_step_),
                metrics.loss, evaluated_.c_str(), static_cast<double>(metrics.tokens) / std::max(1e-9, smooth_seconds_), base::format_bytes(gpu).c_str(), base::format_bytes(metrics.host_bytes).c_str(),
                duration(smooth_seconds_ * static_cast<double>(last_step_ - metrics.step)).c_str());
  std::fprintf(stderr, terminal_ ? "\r\x1b[K%s" : "%s\n", line);
  std::fflush(stderr);
  open_ = terminal_;
}

void ProgressLine::end() {
  if (open_) std::fputc('\n', stderr);
  open_ = false;
}

}  // namespace oom::observe
