#include "runtime/planner.h"

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "base/text.h"
#include "oom/log.h"
#include "plugin/plugin_guard.h"
#include "program/kind_observations.h"
#include "runtime/base_plan.h"
#include "runtime/calibrate.h"
#include "runtime/nearest_plan.h"
#include "runtime/path_runs.h"
#include "runtime/plan_candidate.h"

namespace oom::runtime {
namespace {

/// What configuring and judging one expert strategy came to.
struct Path {
  std::string experts;
  std::optional<PlanCandidate> candidate;  // the fastest that fits, else the smallest
  Trial best;                              // its figures
  std::vector<Trial> others;
  std::string summary;                     // of the plan
  std::string fault;                       // why it cannot be configured
};

Path plan_path(Session& session, Plan plan, const std::string& experts, const Budgets& budgets) {
  Path path{.experts = experts};
  plan.experts = experts;
  configure_strategies(session, plan);
  SearchResult found = search_plan(session, plan, budgets);
  path.candidate = judge_plan(session, found.best.plan, budgets);
  const std::string chosen = describe_difference(found.best.plan, plan);
  path.summary = chosen.empty() ? cat("as configured: ", describe_state(plan)) : chosen;
  path.best = std::move(found.best);
  path.others = std::move(found.others);
  return path;
}

PlannedRun planned_run(Session& session, PlanCandidate&& candidate, const Budgets& budgets, std::string evidence) {
  PlannedRun run;
  run.machine = read_machine(session.device(), session.ranks()).is_target ? machine_of(session) : std::string();
  run.calibration = session.costs_origin(candidate.plan.experts);
  run.calibration_checksum = session.costs_checksum();
  run.bound_by = bound_by(candidate.simulation);
  run.plan = std::move(candidate.plan);
  run.program = std::move(candidate.program);
  run.account = std::move(candidate.account);
  run.simulation = std::move(candidate.simulation);
  run.evidence = std::move(evidence);
  run.gpu_budget_bytes = budgets.gpu_bytes;
  run.headroom_bytes = budgets.headroom_bytes;
  run.host_budget_bytes = budgets.host_bytes;
  return run;
}

PlanAnswer refuse(Session& session, const PlanCandidate& candidate, const Budgets& budgets, const std::string& what) {
  PlanAnswer answer;
  answer.refusal.budgets = budgets;
  answer.refusal.why = cat(what, " does not fit the budgets:\n", describe(candidate.shortfalls));
  answer.refusal.nearest = find_nearest(session, candidate, budgets);
  return answer;
}

// A calibration that holds of a plan's stages nothing, or not all, is used for what it has; the rest is said.
void tell_analytic_kinds(Session& session, const PlannedRun& run) {
  if (run.calibration == kAnalyticCosts) return;
  const CostTable costs = session.costs(run.plan.experts);
  const std::vector<std::string> kinds = program::analytic_kinds(run.program, costs);
  if (kinds.empty()) return;
  const std::string text = cat("plan: of ", run.calibration, " come the costs of what it measured; priced analytically: ", base::join(kinds, ", "),
                               costs.analytic_factor != 1 ? cat(" (times ", costs.analytic_factor, ", as what was measured took)") : std::string(), ". oom calibrate measures this model");
  costs.kinds.empty() ? log_warn(text) : log_info(text);
}

PlanAnswer stated_plan(Session& session, const Plan& wanted, const Machine& machine, Purpose purpose) {
  const std::string& path = *session.config().engine().plan;
  Plan plan = load_stated_plan(session, wanted, machine);
  if (machine.is_target && purpose != Purpose::kPlanOnly && plan.numa_nodes > static_cast<int>(machine.topology.nodes.size())) {
    throw FileError(cat(path, ": numa_nodes: the plan is for ", plan.numa_nodes, " NUMA nodes; this machine has ", machine.topology.nodes.size(), ". Make it again with oom plan"));
  }
  const Budgets budgets = read_budgets(session.config(), plan, machine, purpose);
  PlanCandidate candidate = judge_plan(session, std::move(plan), budgets);
  if (!candidate.fits()) return refuse(session, candidate, budgets, cat(path, ": this plan (engine.plan; the nearest is one made without it)"));
  return {.run = planned_run(session, std::move(candidate), budgets, cat("as ", path, " says")), .refusal = {}};
}

std::vector<int64_t> peaks_of(const std::vector<PlaceAccount>& places) {
  std::vector<int64_t> peaks;
  for (const PlaceAccount& place : places) peaks.push_back(place.peak_bytes);
  return peaks;
}

// The plan that an earlier comparison installed for the same workload, budgets and machine; nothing when there is none that still fits.
std::optional<PlanAnswer> installed_plan(Session& session, const Plan& wanted, const Budgets& budgets) {
  const std::string path = installed_plan_path(session);
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::nullopt;
  try {
    Plan plan = plan::load_plan(path);
    plan::check_plan_matches(plan, wanted, path);
    check_strategies(session, plan, path);
    PlanCandidate candidate = judge_plan(session, std::move(plan), budgets);
    if (candidate.fits()) return PlanAnswer{.run = planned_run(session, std::move(candidate), budgets, cat("chosen by an earlier comparison (", path, "; oom compare makes it anew)")), .refusal = {}};
    log_info("plan: ", path, " does not fit any more and is made anew");
  } catch (const Error& error) {
    log_info("plan: the one kept of an earlier comparison is made anew: ", error.what());
  }
  return std::nullopt;
}

void install_plan(Session& session, const PlannedRun& run) {
  const std::filesystem::path path = installed_plan_path(session);
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  try {
    base::overwrite_text_file(path, plan::plan_toml(run.plan, prediction_of(run)));
  } catch (const FileError& failure) {
    log_info("plan: the next run compares again: ", failure.what());
  }
}

std::vector<Path> plan_paths(Session& session, const Plan& base, const Budgets& budgets) {
  const std::vector<std::string> names = session.expert_candidates();
  std::vector<Path> paths;
  for (const std::string& experts : names) {
    try {
      paths.push_back(plan_path(session, base, experts, budgets));
    } catch (const ConfigError& error) {
      if (names.size() == 1) throw;
      paths.push_back({.experts = experts, .fault = error.what()});
    }
  }
  // A fault that every path comes upon is told once.
  std::vector<std::string> told;
  for (const Path& path : paths) {
    if (!path.fault.empty() && std::find(told.begin(), told.end(), path.fault) == told.end()) told.push_back(path.fault);
  }
  if (std::none_of(paths.begin(), paths.end(), [](const Path& path) { return path.candidate.has_value(); })) throw ConfigError(base::join(told, "\n"));
  return paths;
}

// Whether a plan of some strategy fits, whatever it costs.
bool any_fits(Session& session, const Plan& base, const Budgets& budgets) {
  for (const std::string& experts : session.expert_candidates()) {
    Plan plan = base;
    plan.experts = experts;
    try {
      configure_strategies(session, plan);
      if (over_bytes(session.judge().account(plan), budgets) == 0) return true;
    } catch (const ConfigError&) {
      // Planning says so where no other strategy serves.
    }
  }
  const std::vector<Path> paths = plan_paths(session, base, budgets);
  return std::any_of(paths.begin(), paths.end(), [](const Path& path) { return path.candidate && path.candidate->fits(); });
}

// A search over analytic costs would configure paths for a machine that is not this one: where they are all there is, short runs come first. Not for what is refused anyway.
void measure_costs(Session& session, const Plan& base, const Budgets& budgets) {
  const std::vector<std::string> unknown = uncalibrated(session, session.calibration());
  if (unknown.empty() || !any_fits(session, base, budgets)) return;
  constexpr const char* kOrigin = "short runs of this comparison";
  constexpr double kDoubt = 0.1;  // kernels are that much slower on small slices, and more
  log_info("compare: nothing is calibrated for ", base::join(unknown, " and "), " with this model: the search goes over ", kOrigin, " (oom calibrate runs more, once for all comparisons)");
  session.calibrate_with(calibrate(session.config().path(), session.overrides(), session.calibration(), CalibrationExtent::kOneRun), kOrigin);
  session.doubt_costs(kDoubt);
}

// How the path's own search ended.
std::string reason(const Path& path) {
  const Trial* next = nullptr;
  for (const Trial& trial : path.others) {
    if (trial.fits && (!next || *trial.figures.step_seconds < *next->figures.step_seconds)) next = &trial;
  }
  std::string text = cat("of ", path.others.size() + 1, " plans tried");
  if (!next) return text;
  const double seconds = *next->figures.step_seconds;
  const std::string difference = describe_difference(next->plan, path.best.plan);
  text += seconds < *path.best.figures.step_seconds * (1 - kTie) ? cat(" one would take ", seconds, " s with ", difference, ", a gain that these costs leave in doubt") : cat(" the next takes ", seconds, " s with ", difference);
  return text;
}

PlanAnswer choose(Session& session, std::vector<Path>& paths, const Budgets& budgets, Purpose purpose) {
  std::vector<Candidate> candidates;
  const Path* smallest = nullptr;
  bool any = false;
  for (const Path& path : paths) {
    Candidate candidate;
    candidate.plan.experts = path.experts;
    candidate.why_not = path.fault;
    if (path.candidate) {
      candidate = {.plan = path.candidate->plan, .fits = path.candidate->fits(), .why_not = describe(path.candidate->shortfalls), .predicted_step_seconds = path.candidate->simulation.step_seconds,
                   .gpu_peak_bytes = peaks_of(path.candidate->account.gpus), .host_peak_bytes = peaks_of(path.candidate->account.nodes), .gpu_limit_bytes = budgets.gpu_bytes,
                   .summary = path.summary};
      for (int64_t& bytes : candidate.gpu_limit_bytes) bytes -= budgets.headroom_bytes;
      if (!smallest || path.candidate->over_bytes() < smallest->candidate->over_bytes()) smallest = &path;
    }
    any = any || candidate.fits;
    candidates.push_back(std::move(candidate));
  }
  if (!any) return refuse(session, *smallest->candidate, budgets, cat("expert strategy ", smallest->experts, " with ", smallest->candidate->plan.activations));
  std::string evidence;
  PathRuns runs(session, candidates);
  const bool may_run = purpose == Purpose::kTrain || purpose == Purpose::kMeasure;
  const size_t chosen = plugin::guarded(session.config().engine().selector, "select", plugin::kNoStep,
                                        [&] { return session.selector().select(candidates, may_run ? &runs : nullptr, evidence); });
  OOM_CHECK(chosen < paths.size() && candidates[chosen].fits, "the selector chose candidate ", chosen, ", which does not fit");
  PlanAnswer answer{.run = planned_run(session, std::move(*paths[chosen].candidate), budgets, cat(evidence, evidence.ends_with('\n') ? "  " : "; ", reason(paths[chosen]), "; costs: ", session.costs_origin(candidates[chosen].plan.experts))), .refusal = {}};
  for (size_t i = 0; i < paths.size(); ++i) {
    // Of another strategy what it came to in the end.
    if (i == chosen) answer.run->others.insert(answer.run->others.end(), std::make_move_iterator(paths[i].others.begin()), std::make_move_iterator(paths[i].others.end()));
    else if (paths[i].candidate) answer.run->others.push_back(std::move(paths[i].best));
  }
  return answer;
}

PlanAnswer answer_for(Session& session, Purpose purpose) {
  const Machine machine = read_machine(session.device(), session.ranks());
  const Plan base = base_plan(session, machine, purpose);
  if (session.config().engine().plan) return stated_plan(session, base, machine, purpose);
  const Budgets budgets = read_budgets(session.config(), base, machine, purpose);
  const bool compares = session.config().engine().experts == "auto" && (purpose == Purpose::kTrain || purpose == Purpose::kMeasure);
  if (compares && purpose == Purpose::kTrain) {
    if (std::optional<PlanAnswer> installed = installed_plan(session, base, budgets)) return std::move(*installed);
  }
  if (compares && session.expert_candidates().size() > 1) measure_costs(session, base, budgets);
  std::vector<Path> paths = plan_paths(session, base, budgets);
  PlanAnswer answer = choose(session, paths, budgets, purpose);
  if (compares && answer.run && paths.size() > 1) install_plan(session, *answer.run);
  return answer;
}

}  // namespace

PlanAnswer find_plan(Session& session, Purpose purpose) {
  PlanAnswer answer = answer_for(session, purpose);
  // Short runs are there to measure.
  if (answer.run && purpose != Purpose::kMeasure) tell_analytic_kinds(session, *answer.run);
  return answer;
}

PlannedRun make_plan(Session& session, Purpose purpose) {
  PlanAnswer answer = find_plan(session, purpose);
  if (!answer.run) throw BudgetError(cat(answer.refusal.why, "\n", answer.refusal.nearest.describe()));
  if (purpose == Purpose::kTrain) check_disk(session.config(), session.model().description.total_parameters());
  if (answer.run->plan.device == DeviceKind::kCuda) {
    int64_t pinned = 0;
    for (const PlaceAccount& node : answer.run->account.nodes) pinned += node.persistent_bytes - node.persistent[static_cast<size_t>(BufferClass::kFixed)];
    check_memlock(hardware::read_host_limits(), pinned);
  }
  return std::move(*answer.run);
}

plan::PlanPrediction prediction_of(const PlannedRun& run) {
  plan::PlanPrediction prediction{.step_seconds = run.simulation.step_seconds, .gpu_peak_bytes = {}, .host_peak_bytes = {}, .machine = run.machine, .calibration = run.calibration, .calibration_checksum = run.calibration_checksum};
  for (const PlaceAccount& gpu : run.account.gpus) prediction.gpu_peak_bytes.push_back(gpu.peak_bytes);
  for (const PlaceAccount& node : run.account.nodes) prediction.host_peak_bytes.push_back(node.peak_bytes);
  return prediction;
}

}  // namespace oom::runtime
