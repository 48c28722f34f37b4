#include "runtime/calibrate.h"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <optional>

#include "base/text.h"
#include "checkpoint/block_checksum.h"
#include "hardware/machine_fingerprint.h"
#include "oom/version.h"
#include "plugin/build_stamp.h"
#include "program/kind_observations.h"
#include "runtime/device_costs.h"
#include "runtime/geometry.h"
#include "runtime/machine_rates.h"
#include "runtime/path_runs.h"
#include "runtime/planner.h"
#include "runtime/short_run.h"

namespace oom::runtime {
namespace {

constexpr int kLeastUnitLayers = 4;
constexpr int64_t kLeastSequence = 64;
constexpr double kAsConfigured = 1;  // no other slices are faster by all of a step

// Batch and sequence length vary apart, so that what grows with tokens and what grows with their context can be told from each other.
std::vector<std::vector<std::string>> shapes_of(const config::Config& config, int ranks) {
  const int64_t batch = config.train().global_batch, length = config.data().sequence_length;
  std::vector<std::vector<std::string>> shapes{{}};
  if (batch / 2 % ranks == 0 && batch / 2 >= ranks) shapes.push_back({cat("train.global_batch=", batch / 2)});
  if (length / 2 >= kLeastSequence) shapes.push_back({cat("data.sequence_length=", length / 2)});
  return shapes;
}

/// The short runs of one expert strategy, and what they showed.
class StrategyRuns {
 public:
  /// `rates` are asked for when a run has succeeded: nothing is measured for runs that cannot be. `doubt`: of the costs that runs are planned by (Session::doubt_costs).
  StrategyRuns(const std::string& config_path, const std::vector<std::string>& overrides, std::string experts, int unit, const std::function<const CostTable&()>& rates, double doubt)
      : config_path_(config_path), overrides_(overrides), experts_(std::move(experts)), unit_(unit), rates_(rates), doubt_(doubt) {
    overrides_.push_back(cat("engine.experts=\"", experts_, "\""));
  }

  /// False, with fault() saying why, where the strategy cannot serve this model or number of ranks, or the run does not fit its budgets.
  bool run(const std::vector<std::string>& more) {
    std::vector<std::string> all = overrides_;
    all.push_back(cat("model.layers=", unit_));
    all.insert(all.end(), more.begin(), more.end());
    try {
      const ShortRun run = run_briefly(config_path_, all, {.warm_up = 1, .measured = 3, .record_stages = true, .doubt = doubt_});
      log_info("calibrate: ", experts_, ", ", unit_, " layers, ", run.planned.plan.workload.global_batch, " x ", run.planned.plan.workload.sequence_length, " tokens: ", run.step_seconds, " s a step");
      observations_.add(run.planned.program, run.stages, rates_());
      return true;
    } catch (const BudgetError& error) {
      fault_ = error.what();
      refusal_ = std::current_exception();
    } catch (const ConfigError& error) {
      fault_ = error.what();
      refusal_ = std::current_exception();
    }
    return false;
  }

  /// The whole model's plan by what is known so far, on one unit: its slices and chunks, and kinds of stages that no plan of the unit had. Nothing when none fits.
  std::optional<std::vector<std::string>> chosen_by(const plan::Calibration& known) const {
    Session session(config_path_, overrides_);
    session.calibrate_with(known, "this calibration");
    const PlanAnswer answer = find_plan(session, Purpose::kPlanOnly);
    if (!answer.run) return std::nullopt;
    return short_overrides(answer.run->plan, unit_, static_cast<int>(session.model().description.layers.size()));
  }

  plan::CalibrationProfile profile(const ModelDescription& model, ElementType compute) const {
    return {.geometry = geometry_of(model), .experts = experts_, .compute = compute, .kinds = observations_.fits(), .analytic_factor = observations_.analytic_factor()};
  }
  bool empty() const { return observations_.empty(); }
  const std::string& fault() const { return fault_; }
  std::exception_ptr refusal() const { return refusal_; }

 private:
  const std::string& config_path_;
  std::vector<std::string> overrides_;
  std::string experts_;
  int unit_;
  const std::function<const CostTable&()>& rates_;
  double doubt_;
  program::KindObservations observations_;
  std::string fault_;
  std::exception_ptr refusal_;  // what the fault was thrown as
};

// Whether what was measured holds for the session's machine.
bool serves(const Session& session, const plan::Calibration& known) {
  return known.machine == machine_of(session) && known.versions == calibrated_versions() && known.device == session.device();
}

ElementType compute_of(const config::Config& config) { return config.precision().compute == config::Dtype::kFp32 ? ElementType::kFloat32 : ElementType::kBfloat16; }

}  // namespace

int repeating_unit(const ModelDescription& model) {
  const int layers = static_cast<int>(model.layers.size());
  const auto same = [&](int a, int b) { return model.layers[a].mixer == model.layers[b].mixer && model.layers[a].feed_forward == model.layers[b].feed_forward; };
  for (int period = 1; period <= layers; ++period) {
    bool repeats = true;
    for (int layer = period; layer < layers && repeats; ++layer) repeats = same(layer, layer - period);
    if (!repeats) continue;
    const int unit = period * ((kLeastUnitLayers + period - 1) / period);
    return 2 * unit <= layers ? unit : layers;
  }
  return layers;
}

std::vector<std::string> uncalibrated(Session& session, const plan::Calibration& known) {
  std::vector<std::string> strategies = session.expert_candidates();
  if (!serves(session, known)) return strategies;
  const std::string geometry = geometry_of(session.model().description);
  std::erase_if(strategies, [&](const std::string& experts) { return known.find(geometry, experts, compute_of(session.config())) != nullptr; });
  return strategies;
}

void forget_profiles(Session& session, plan::Calibration& known) {
  const std::vector<std::string> strategies = session.expert_candidates();
  std::erase_if(known.profiles, [&, geometry = geometry_of(session.model().description)](const plan::CalibrationProfile& profile) {
    return profile.geometry == geometry && std::find(strategies.begin(), strategies.end(), profile.experts) != strategies.end();
  });
}

plan::Calibration calibrate(const std::string& config_path, const std::vector<std::string>& overrides, plan::Calibration known, CalibrationExtent extent) {
  Session session(config_path, overrides);
  const Machine machine = read_machine(session.device(), session.ranks());
  const ModelDescription& model = session.model().description;
  const int unit = repeating_unit(model);
  const std::vector<std::string> strategies = uncalibrated(session, known);
  const bool full = extent == CalibrationExtent::kFull, has_rates = serves(session, known);
  if (!has_rates) known = {.machine = machine_of(session), .versions = calibrated_versions(), .device = session.device(), .rates = {}, .profiles = {}};
  bool is_measured = has_rates && !(full && strategies == session.expert_candidates());
  const std::function<const CostTable&()> rates = [&]() -> const CostTable& {
    if (!is_measured) {
      log_info("calibrate: rates of ", known.machine);
      known.rates = measure_machine_rates(machine, session.device(), session.ranks());
    }
    is_measured = true;
    return known.rates;
  };

  const ElementType compute = compute_of(session.config());
  std::exception_ptr refusal;
  std::vector<std::string> left_out;
  for (const std::string& experts : strategies) {
    StrategyRuns runs(config_path, overrides, experts, unit, rates, full ? 0 : kAsConfigured);
    std::vector<std::string> missing;
    for (const std::vector<std::string>& shape : full ? shapes_of(session.config(), session.ranks()) : std::vector<std::vector<std::string>>{{}}) {
      if (!runs.run(shape)) missing.push_back(cat(shape.empty() ? "its batch and sequence length" : base::join(shape, ", "), ": ", runs.fault()));
    }
    if (runs.empty()) {
      refusal = runs.refusal();
      left_out.push_back(cat("calibrate: ", experts, " was left out: ", runs.fault()));
      continue;
    }
    for (const std::string& each : missing) log_warn("calibrate: ", experts, " was not run with ", each);
    known.put(runs.profile(model, compute));
    if (!full) continue;
    if (const auto chosen = runs.chosen_by(known)) {
      if (!runs.run(*chosen)) log_warn("calibrate: ", experts, " was not run with the whole model's plan on ", unit, " layers: ", runs.fault());
      known.put(runs.profile(model, compute));
    }
  }
  if (left_out.size() == session.expert_candidates().size()) {
    if (!full) return known;  // planning says why, once
    left_out.pop_back();
  } else {
    refusal = nullptr;
  }
  for (const std::string& each : left_out) log_warn(each);
  if (refusal) std::rethrow_exception(refusal);
  return known;
}

std::string machine_of(const Session& session) {
  return hardware::machine_fingerprint(session.device() == DeviceKind::kCuda ? hardware::list_gpus() : hardware::GpuList{}, hardware::Topology::detect());
}

std::string calibrated_versions() { return cat("oom ", OOM_SDK_VERSION, ", LibTorch ", plugin::engine_stamp().libtorch, ", CUDA ", plugin::engine_stamp().cuda); }

std::string cached_calibration_path(const std::string& machine) {
  namespace fs = std::filesystem;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const fs::path folder = cache && *cache ? fs::path(cache) : fs::path(home && *home ? home : "/tmp") / ".cache";
  return folder / "oom" / cat("calibration-", checkpoint::checksum_text(machine), ".toml");
}

PlanningCosts::PlanningCosts(Session& session) : session_(session) {
  const std::optional<std::string>& stated = session.config().engine().calibration;
  const std::string machine = machine_of(session);
  std::error_code ignored;
  if (stated) {
    path_ = *stated;
  } else if (const std::string cached = cached_calibration_path(machine); std::filesystem::exists(cached, ignored)) {
    path_ = cached;
  }
  if (path_.empty()) return;
  calibration_ = plan::load_calibration(path_);
  checksum_ = checkpoint::checksum_text(plan::calibration_toml(calibration_));
  std::string other;
  if (calibration_.device != session.device()) other = "another device";
  else if (calibration_.machine != machine && read_machine(session.device(), session.ranks()).is_target) other = cat("another machine: ", calibration_.machine, "; this one is ", machine);
  else if (calibration_.versions != calibrated_versions()) other = cat("other versions: ", calibration_.versions, "; these are ", calibrated_versions());
  if (other.empty()) return;
  if (stated) throw FileError(cat(session.config().where("engine", "calibration"), ": ", path_, " was measured with ", other, ". Run oom calibrate here, or remove the key"));
  log_info("plan: ", path_, " is not used: it was measured with ", other, ". oom calibrate makes it anew");
  path_.clear();
  checksum_.clear();
  calibration_ = {};
}

PlanningCosts::PlanningCosts(Session& session, plan::Calibration calibration, std::string origin, std::string checksum)
    : session_(session), path_(std::move(origin)), checksum_(std::move(checksum)), calibration_(std::move(calibration)) {}

CostTable PlanningCosts::of(const std::string& experts) const {
  if (path_.empty()) return analytic_costs(session_.device());
  CostTable costs = calibration_.rates;
  if (const plan::CalibrationProfile* profile = calibration_.find(geometry_of(session_.model().description), experts, compute_of(session_.config()))) {
    costs.kinds = profile->kinds;
    costs.analytic_factor = profile->analytic_factor;
  }
  return costs;
}

std::string PlanningCosts::origin(const std::string& experts) const {
  if (path_.empty()) return kAnalyticCosts;
  const bool kinds = calibration_.find(geometry_of(session_.model().description), experts, compute_of(session_.config())) != nullptr;
  return cat(path_, kinds ? "" : " (rates of the machine; it has no profile of this model under this strategy)");
}

}  // namespace oom::runtime
