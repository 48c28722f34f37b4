#include "configure_then_compare.h"

#include <algorithm>
#include <cstdio>

#include "extrapolation.h"

namespace oom::selector {
namespace {

struct Verdict {
  std::optional<Extrapolation> measured;
  std::string note;  // why there is no measurement
};

Verdict measure(ShortRuns& runs, size_t candidate) {
  const int unit = runs.unit_layers(), layers = runs.layers();
  try {
    const ShortRuns::Result one = runs.run(candidate, unit);
    std::optional<ShortRuns::Result> two;
    if (unit < layers) two = runs.run(candidate, 2 * unit);
    return {extrapolate(one, two, unit, layers), {}};
  } catch (const BudgetError& error) {
    return {std::nullopt, cat("its short run does not fit: ", error.what())};
  }
}

double largest_gib(const std::vector<int64_t>& bytes) { return bytes.empty() ? 0 : static_cast<double>(*std::max_element(bytes.begin(), bytes.end())) / (1 << 30); }
double total_gib(const std::vector<int64_t>& bytes) {
  double sum = 0;
  for (const int64_t value : bytes) sum += static_cast<double>(value) / (1 << 30);
  return sum;
}

std::string table(const std::vector<Candidate>& candidates, const std::vector<Verdict>& verdicts, size_t chosen) {
  char line[256];
  std::snprintf(line, sizeof line, "\n    %-10s %14s %17s %15s %11s %11s\n", "experts", "predicted [s]", "extrapolated [s]", "fixed + layer", "GPU [GiB]", "host [GiB]");
  std::string text = line;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const Candidate& candidate = candidates[i];
    const char mark = i == chosen ? '*' : ' ';
    if (!candidate.fits || !verdicts[i].measured) {
      text += cat("  ", std::string(1, mark), " ", candidate.plan.experts, ": ", candidate.fits ? verdicts[i].note : candidate.why_not, "\n");
      continue;
    }
    const Extrapolation& measured = *verdicts[i].measured;
    char parts[64];
    std::snprintf(parts, sizeof parts, "%.3g + %.3g", measured.fixed_seconds, measured.seconds_per_layer);
    std::snprintf(line, sizeof line, "  %c %-10s %14.4g %17.4g %15s %11.4g %11.4g\n", mark, candidate.plan.experts.c_str(), candidate.predicted_step_seconds, measured.step_seconds, parts,
                  largest_gib(candidate.gpu_peak_bytes), total_gib(candidate.host_peak_bytes));
    text += line;
  }
  return text;
}

}  // namespace

ConfigureThenCompare::ConfigureThenCompare(const HostServices&) {}

size_t ConfigureThenCompare::select(const std::vector<Candidate>& candidates, ShortRuns* runs, std::string& evidence) const {
  std::vector<size_t> fitting;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i].fits) fitting.push_back(i);
  }
  OOM_CHECK(!fitting.empty(), "no candidate fits");
  const auto predicted = [&](size_t i) { return candidates[i].predicted_step_seconds; };
  const size_t favourite = *std::min_element(fitting.begin(), fitting.end(), [&](size_t a, size_t b) { return predicted(a) < predicted(b); });
  const auto name = [&](size_t i) { return cat(candidates[i].plan.experts, " with ", candidates[i].plan.activations); };
  if (fitting.size() == 1 || !runs) {
    evidence = cat(name(favourite), ": ", fitting.size() == 1 ? std::string("the only candidate that fits") : cat("the shortest predicted step of ", fitting.size(), " candidates that fit"));
    return favourite;
  }
  std::vector<Verdict> verdicts(candidates.size());
  size_t best = candidates.size();
  for (const size_t i : fitting) {
    verdicts[i] = measure(*runs, i);
    if (verdicts[i].measured && (best == candidates.size() || verdicts[i].measured->step_seconds < verdicts[best].measured->step_seconds)) best = i;
  }
  const bool any = best < candidates.size();
  if (!any) best = favourite;
  evidence = cat(name(best), any ? ": the fastest in short runs" : ": the shortest predicted step; no short run succeeded", table(candidates, verdicts, best));
  return best;
}

}  // namespace oom::selector
