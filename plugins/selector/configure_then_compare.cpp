#include "configure_then_compare.h"

#include <algorithm>
#include <cstdio>

#include "extrapolation.h"

namespace oom::selector {
namespace {

struct Verdict {
  std::optional<Extrapolation> measured;
  std::string note;  // why there is no measurement, or why it is none to choose
  bool may_be_chosen() const { return measured && note.empty(); }
};

double gib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

// Empty where what short runs took, extended to all layers, is within the limits.
std::string exceeded(const Extrapolation& measured, const std::vector<int64_t>& limits) {
  for (size_t rank = 0; rank < std::min(limits.size(), measured.gpu_peak_bytes.size()); ++rank) {
    const int64_t peak = measured.gpu_peak_bytes[rank];
    if (peak <= limits[rank]) continue;
    char text[160];
    std::snprintf(text, sizeof text, "by its short runs GPU %zu would need %.4g GiB of %.4g GiB (%.3g GiB too many)", rank, gib(peak), gib(limits[rank]), gib(peak - limits[rank]));
    return text;
  }
  return {};
}

Verdict measure(ShortRuns& runs, const std::vector<Candidate>& candidates, size_t candidate) {
  const int unit = runs.unit_layers(), layers = runs.layers();
  const LayerMix whole = mix_of(candidates[candidate].plan);
  const auto sample = [&](int count, const LayerMix& mix) { return Sample{count, mix, runs.run(candidate, count, mix)}; };
  try {
    Verdict verdict;
    if (unit >= layers) {
      verdict.measured = extrapolate(sample(layers, whole), std::nullopt, {}, whole, layers);
    } else {
      const Samples wanted = samples(whole, unit, layers);
      const Sample one = sample(unit, wanted.one), two = sample(2 * unit, wanted.two);
      std::vector<Sample> more;
      for (const LayerMix& mix : wanted.more) more.push_back(sample(2 * unit, mix));
      verdict.measured = extrapolate(one, two, more, whole, layers);
    }
    verdict.note = exceeded(*verdict.measured, candidates[candidate].gpu_limit_bytes);
    return verdict;
  } catch (const BudgetError& error) {
    return {std::nullopt, cat("its short run does not fit: ", error.what())};
  }
}

double largest_gib(const std::vector<int64_t>& bytes) { return bytes.empty() ? 0 : gib(*std::max_element(bytes.begin(), bytes.end())); }
double total_gib(const std::vector<int64_t>& bytes) {
  double sum = 0;
  for (const int64_t value : bytes) sum += gib(value);
  return sum;
}

std::string table(const std::vector<Candidate>& candidates, const std::vector<Verdict>& verdicts, size_t chosen) {
  char line[256];
  std::snprintf(line, sizeof line, "\n    %-10s %14s %17s %15s %16s %19s %11s\n", "experts", "predicted [s]", "extrapolated [s]", "fixed + layer", "GPU [GiB]", "extrapolated [GiB]", "host [GiB]");
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
    std::snprintf(line, sizeof line, "  %c %-10s %14.4g %17.4g %15s %16.4g %19.4g %11.4g\n", mark, candidate.plan.experts.c_str(), candidate.predicted_step_seconds, measured.step_seconds, parts,
                  largest_gib(candidate.gpu_peak_bytes), largest_gib(measured.gpu_peak_bytes), total_gib(candidate.host_peak_bytes));
    text += line;
    for (const std::string* more : {&candidate.summary, &verdicts[i].note}) {
      if (!more->empty()) text += cat("      ", *more, "\n");
    }
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
    verdicts[i] = measure(*runs, candidates, i);
  }
  const auto fastest = [&](auto among) {
    for (const size_t i : fitting) {
      if (among(verdicts[i]) && (best == candidates.size() || verdicts[i].measured->step_seconds < verdicts[best].measured->step_seconds)) best = i;
    }
    return best < candidates.size();
  };
  std::string why = ": the fastest in short runs";
  if (!fastest([](const Verdict& verdict) { return verdict.may_be_chosen(); })) {
    if (fastest([](const Verdict& verdict) { return verdict.measured.has_value(); })) {
      why += "; by these every candidate is over a budget, by predictions it fits";
    } else {
      best = favourite;
      why = ": the shortest predicted step; no short run succeeded";
    }
  }
  evidence = cat(name(best), why, table(candidates, verdicts, best));
  return best;
}

}  // namespace oom::selector
