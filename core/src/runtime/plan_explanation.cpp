#include "runtime/plan_explanation.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>

#include "base/text.h"
#include "runtime/base_plan.h"

namespace oom::runtime {
namespace {

Budgets budgets_of(const PlannedRun& run) { return {.gpu_bytes = run.gpu_budget_bytes, .headroom_bytes = run.headroom_bytes, .host_bytes = run.host_budget_bytes}; }

std::string percent(double seconds, double of) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", 100 * (seconds / of - 1));
  return text;
}

std::string why_lost(const Trial& trial, double seconds, const Budgets& budgets) {
  if (!trial.fits) {
    const int64_t gpu = -gpu_spare_bytes(trial.figures, budgets), host = -host_spare_bytes(trial.figures, budgets);
    std::string text;
    if (gpu > 0) text = cat(base::format_bytes(gpu), " of GPU memory too many");
    if (host > 0) text += cat(text.empty() ? "" : ", ", base::format_bytes(host), " of host memory too many");
    return text;
  }
  const double own = *trial.figures.step_seconds;
  return own > seconds * (1 + kTie) ? cat(percent(own, seconds), " slower") : "as fast, with less memory left";
}

std::optional<Trial> shortest(Session& session, const Plan& base, const Budgets& budgets) {
  std::optional<Trial> best;
  for (const std::string& experts : session.expert_candidates()) {
    Plan plan = base;
    plan.experts = experts;
    try {
      configure_strategies(session, plan);
    } catch (const ConfigError&) {
      continue;
    }
    Trial trial = search_plan(session, plan, budgets).best;
    if (trial.fits && (!best || *trial.figures.step_seconds < *best->figures.step_seconds)) best = std::move(trial);
  }
  return best;
}

struct LargerBudget {
  const char* what;
  Budgets budgets;
};

std::vector<LargerBudget> larger_budgets(const PlannedRun& run) {
  constexpr int64_t kMore = int64_t{1} << 30;
  std::vector<LargerBudget> all;
  for (const auto& [what, which] : {std::pair{"one more GiB of each GPU", &Budgets::gpu_bytes}, std::pair{"one more GiB of each NUMA node", &Budgets::host_bytes}}) {
    Budgets budgets = budgets_of(run);
    if ((budgets.*which).empty()) continue;
    for (int64_t& bytes : budgets.*which) bytes += kMore;
    all.push_back({what, std::move(budgets)});
  }
  return all;
}

// Of the GPU that is fullest: the most that is there while stages of each kind run, the largest kinds. Where the next peak is if the first is brought down.
std::string peaks_by_kind(const PlannedRun& run, size_t count) {
  const auto& gpus = run.account.gpus;
  const auto fullest = std::max_element(gpus.begin(), gpus.end(), [](const PlaceAccount& a, const PlaceAccount& b) { return a.peak_bytes < b.peak_bytes; });
  if (fullest == gpus.end()) return {};
  std::map<KindId, LiveBytes> most;
  for (const LiveBytes& live : fullest->live) {
    LiveBytes& kind = most[run.program.stages[live.stage].kind];
    if (live.bytes > kind.bytes) kind = live;
  }
  std::vector<LiveBytes> kinds;
  for (const auto& [kind, live] : most) kinds.push_back(live);
  std::stable_sort(kinds.begin(), kinds.end(), [](const LiveBytes& a, const LiveBytes& b) { return a.bytes > b.bytes; });
  std::string text = cat("most memory of ", place_name(fullest->place), " by kind of stage\n");
  for (size_t i = 0; i < std::min(count, kinds.size()); ++i) text += cat("  ", base::format_bytes(kinds[i].bytes), " at ", stage_name(run.program, kinds[i].stage), "\n");
  return text + "\n";
}

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g s", seconds);
  return text;
}

}  // namespace

std::vector<RunnerUp> runners_up(const PlannedRun& run, size_t count) {
  const Budgets budgets = budgets_of(run);
  std::vector<const Trial*> strategies, fitting, others;
  for (const Trial& trial : run.others) (trial.plan.experts != run.plan.experts ? strategies : trial.fits ? fitting : others).push_back(&trial);
  std::stable_sort(fitting.begin(), fitting.end(), [](const Trial* a, const Trial* b) { return *a->figures.step_seconds < *b->figures.step_seconds; });
  std::stable_sort(others.begin(), others.end(), [&](const Trial* a, const Trial* b) { return over_bytes(a->figures, budgets) < over_bytes(b->figures, budgets); });
  std::vector<RunnerUp> lost;
  for (const auto* trials : {&strategies, &fitting, &others}) {
    for (size_t i = 0; i < std::min(count, trials->size()); ++i) {
      const Trial& trial = *(*trials)[i];
      lost.push_back({describe_difference(trial.plan, run.plan), why_lost(trial, run.simulation.step_seconds, budgets), trial.figures});
    }
  }
  return lost;
}

std::vector<BudgetGain> budget_gains(Session& session, const PlannedRun& run) {
  std::vector<BudgetGain> gains;
  if (session.config().engine().plan) return gains;
  const Plan base = base_plan(session, read_machine(session.device(), session.ranks()), Purpose::kPlanOnly);
  for (const LargerBudget& larger : larger_budgets(run)) {
    if (const std::optional<Trial> best = shortest(session, base, larger.budgets)) gains.push_back({larger.what, *best->figures.step_seconds, describe_difference(best->plan, run.plan)});
  }
  return gains;
}

std::vector<BudgetGain> known_gains(const PlannedRun& run) {
  const Budgets now = budgets_of(run);
  std::vector<BudgetGain> gains;
  for (const LargerBudget& larger : larger_budgets(run)) {
    const Trial* nearest = nullptr;
    for (const Trial& trial : run.others) {
      if (trial.fits || over_bytes(trial.figures, larger.budgets) > 0) continue;
      if (!nearest || over_bytes(trial.figures, now) < over_bytes(nearest->figures, now)) nearest = &trial;
    }
    if (nearest) gains.push_back({larger.what, 0, describe_difference(nearest->plan, run.plan)});
  }
  return gains;
}

std::string explain(Session& session, const PlannedRun& run) {
  std::string text = peaks_by_kind(run, 8) + "what lost\n";
  for (const RunnerUp& lost : runners_up(run)) {
    text += cat("  ", lost.why, lost.figures.step_seconds ? cat(" (", seconds_text(*lost.figures.step_seconds), ")") : std::string(), ": ", lost.difference.empty() ? "the same" : lost.difference, "\n");
  }
  const std::vector<BudgetGain> gains = budget_gains(session, run);
  if (!gains.empty()) text += "\nwhat more memory would buy\n";
  for (const BudgetGain& gain : gains) {
    const bool faster = gain.step_seconds < run.simulation.step_seconds;
    text += cat("  ", gain.budget, ": ", faster ? cat(seconds_text(gain.step_seconds), ", ", percent(gain.step_seconds, run.simulation.step_seconds)) : std::string("nothing"),
                faster && !gain.difference.empty() ? cat(" with ", gain.difference) : std::string(), "\n");
  }
  return text;
}

}  // namespace oom::runtime
