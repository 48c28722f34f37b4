#include "runtime/path_runs.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>

#include "base/file.h"
#include "base/text.h"
#include "checkpoint/block_checksum.h"
#include "config/choices.h"
#include "config/toml_values.h"
#include "plan/plan_file.h"
#include "runtime/base_plan.h"
#include "runtime/calibrate.h"
#include "runtime/geometry.h"
#include "runtime/residency.h"
#include "runtime/short_run.h"

namespace oom::runtime {
namespace {

// Of a list of layers those that the short model has; anything else as it is.
std::string cut_to(const std::string& value, int layers) {
  const config::TomlValue root = config::parse_toml(cat("value = ", value), "plan settings");
  const config::TomlValue& list = root.get("value");
  if (!list.is(config::TomlValue::Kind::kArray)) return value;
  config::TomlValue kept{config::TomlValue::Array{}};
  for (const config::TomlValue& element : list.as_array()) {
    if (!element.is(config::TomlValue::Kind::kInteger) || element.as_integer() < layers) kept.append(element);
  }
  return config::write_toml_value(kept);
}

int64_t share(size_t of_all, int layers, int all) { return std::lround(static_cast<double>(of_all) * layers / all); }

}  // namespace

std::vector<std::string> short_overrides(const Plan& plan, int layers, int all) {
  std::vector<std::string> overrides{cat("model.layers=", layers), cat("engine.experts=\"", plan.experts, "\""), cat("engine.activations=\"", plan.activations, "\""),
                                     cat("state.resident=", share(plan.resident_layers.size(), layers, all)),
                                     cat("state.resident_ordinary=\"", config::word(plan.resident_ordinary), "\""),
                                     cat("transfer.gradient_slots=", plan.transfer.gradient_slots),
                                     cat("transfer.ordinary_gradient_slots=", plan.transfer.ordinary_gradient_slots),
                                     cat("state.weights=\"", plan.cached_weights ? "cached" : "convert", "\""),
                                     cat("state.resident_weights=\"", plan.resident_cached_weights ? "cached" : "convert", "\"")};
  for (const auto& [plugin, values] : plan.settings) {
    for (const auto& [key, value] : values) overrides.push_back(cat(plugin, ".", key, "=", cut_to(value, layers)));
  }
  if (chooses_retained(plan)) {
    overrides.push_back(cat(plan.experts, ".retain=", share(plan.retained_feed_forward.size(), layers, all)));
    overrides.push_back(cat(plan.experts, ".retain_attention=", share(plan.retained_attention.size(), layers, all)));
  }
  return overrides;
}

std::vector<int> spread_as(const std::vector<int>& chosen, int count, int layers, int all) {
  std::vector<int> spread;
  const int64_t of = static_cast<int64_t>(chosen.size());
  OOM_CHECK(count <= layers && (count == 0 || of > 0), count, " of ", layers, " layers as ", of, " of ", all);
  for (int i = 0; i < count; ++i) {
    const int wanted = static_cast<int>(static_cast<int64_t>(chosen[(2 * i + 1) * of / (2 * count)]) * layers / all);
    // Each has a layer of its own, and leaves one for every later one.
    spread.push_back(std::clamp(wanted, spread.empty() ? 0 : spread.back() + 1, layers - count + i));
  }
  return spread;
}

ShortPlan::ShortPlan(Session& whole, const Plan& plan, int layers, const LayerMix& mix) : overrides_(whole.overrides()) {
  const int all = static_cast<int>(whole.model().description.layers.size());
  for (std::string& more : std::vector<std::string>{cat("model.layers=", layers), "model.weights=random", cat("engine.experts=\"", plan.experts, "\""), cat("engine.activations=\"", plan.activations, "\"")}) {
    overrides_.push_back(std::move(more));
  }
  Plan cut = plan;
  {
    Session session(whole.config().path(), overrides_);
    cut.workload = base_plan(session, read_machine(session.device(), session.ranks()), Purpose::kMeasure).workload;
  }
  cut.resident_layers = spread_as(plan.resident_layers, mix.resident, layers, all);
  cut.retained_feed_forward = spread_as(plan.retained_feed_forward, mix.retained_feed_forward, layers, all);
  cut.retained_attention = spread_as(plan.retained_attention, mix.retained_attention, layers, all);
  // That all wait is another way of working than that nearly all do.
  cut.deferred_layers = plan.deferred_layers >= all ? layers : std::min(mix.deferred, layers - 1);
  for (auto& [plugin, values] : cut.settings) {
    for (auto& [key, value] : values) value = cut_to(value, layers);
  }
  static std::atomic<int> made{0};
  path_ = (std::filesystem::temp_directory_path() / cat("oom-short-", ::getpid(), "-", made++, ".toml")).string();
  base::overwrite_text_file(path_, plan::plan_toml(cut));
  overrides_.push_back(cat("engine.plan=\"", path_, "\""));
}

ShortPlan::~ShortPlan() {
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

int PathRuns::layers() const { return static_cast<int>(session_.model().description.layers.size()); }
int PathRuns::unit_layers() const { return repeating_unit(session_.model().description); }

ShortRuns::Result PathRuns::run(size_t candidate, int layers, const LayerMix& mix) {
  const Plan& plan = candidates_.at(candidate).plan;
  const ShortPlan cut(session_, plan, layers, mix);
  ShortRun run = run_briefly(session_.config().path(), cut.overrides());
  log_info("compare: ", plan.experts, ", ", layers, " layers, ", mix.resident, " resident: ", run.step_seconds, " s a step, predicted ",
           simulate_plan(run.planned.plan, run.planned.program, session_.costs(plan.experts)).step_seconds);
  return {run.step_seconds, std::move(run.gpu_peak_bytes)};
}

std::string installed_plan_path(Session& session) {
  const config::Config& config = session.config();
  std::string key = cat(machine_of(session), "|", calibrated_versions(), "|", geometry_of(session.model().description), "|", session.model().description.layers.size(), " layers|", session.ranks(), " ranks");
  // Everything that a plan may depend on: not where data and results lie, nor rates and lengths of the training.
  constexpr std::string_view kOthers[] = {"model", "data", "train", "engine", "checkpoint", "output", "eval"};
  const config::TomlValue tables = config::parse_toml(config::resolved_toml(config), "config");
  for (const config::TomlValue::Member& table : tables.as_table()) {
    if (std::find(std::begin(kOthers), std::end(kOthers), table.key) == std::end(kOthers)) key += cat("|", table.key, "\n", config::write_toml(table.value));
  }
  const config::Train& train = config.train();
  key += cat("|", config.data().sequence_length, "|", static_cast<int>(config.data().documents), "|", train.global_batch, "|", train.clip_norm > 0, "|", static_cast<int>(train.resolved_updates()),
             "|", config.engine().activations, "|", config.engine().deterministic, "|", session.costs_checksum());
  return std::filesystem::path(cached_calibration_path({})).parent_path() / cat("plan-", checkpoint::checksum_text(key), ".toml");
}

}  // namespace oom::runtime
