#include "least_memory.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace least_memory {

const oom::SettingsSchema& LeastMemory::settings_schema() {
  static const oom::SettingsSchema schema{.table = "least_memory",
                                          .doc = "Which expert strategy: the one that needs the least host memory.",
                                          .settings = {{.key = "slower_percent",
                                                        .forms = oom::kNumberForm,
                                                        .unit = "percent",
                                                        .range = oom::at_least(0),
                                                        .fallback = 25.0,
                                                        .doc = "How much slower than the fastest predicted step the chosen one may be."}}};
  return schema;
}

LeastMemory::LeastMemory(const oom::HostServices& services) : services_(services) {
  // Null while the plugin is only asked about itself, before a config was read.
  if (services.settings != nullptr) slower_percent_ = services.settings->get_number("slower_percent");
}

// `runs` would run candidates on fewer layers of the model, for seconds or minutes; this rule does without.
size_t LeastMemory::select(const std::vector<oom::Candidate>& candidates, oom::ShortRuns*, std::string& evidence) const {
  double fastest = std::numeric_limits<double>::infinity();
  for (const oom::Candidate& candidate : candidates) {
    if (candidate.fits) fastest = std::min(fastest, candidate.predicted_step_seconds);
  }
  const auto host_bytes = [](const oom::Candidate& candidate) { return std::accumulate(candidate.host_peak_bytes.begin(), candidate.host_peak_bytes.end(), int64_t{0}); };
  const oom::Candidate* best = nullptr;
  for (const oom::Candidate& candidate : candidates) {
    if (!candidate.fits || candidate.predicted_step_seconds > fastest * (1 + slower_percent_ / 100)) continue;
    if (best == nullptr || host_bytes(candidate) < host_bytes(*best)) best = &candidate;
  }
  OOM_CHECK(best != nullptr, "no candidate fits");
  evidence = oom::cat(best->plan.experts, ": the least host memory of those at most ", slower_percent_, " % slower than the fastest predicted, ", host_bytes(*best) >> 20, " MiB");
  services_.log(oom::LogLevel::kInfo, oom::cat("least_memory: chose ", best->plan.experts));
  return static_cast<size_t>(best - candidates.data());
}

}  // namespace least_memory
