/// A command's surroundings: the configuration, the plugins it names, the model as its adapter describes it. Nothing here touches a device or
/// reads weights, so it serves `plan` and `inspect` on any machine.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "oom/activation_strategy.h"
#include "oom/cost_table.h"
#include "oom/model_adapter.h"
#include "oom/selector.h"
#include "plugin/plugin_registry.h"
#include "runtime/program_emitter.h"

namespace oom::plan {
struct Calibration;
}

namespace oom::runtime {

/// A model folder's description and operators, and the adapter that made them.
struct LoadedModel {
  const ModelAdapter* adapter = nullptr;
  ModelDescription description;
  ModelOperators operators;
};

/// Plugins found and created for one command; owns them, destroys them in reverse order.
class PluginHost {
 public:
  /// `entries`: [engine] plugin_path.
  explicit PluginHost(const std::vector<std::string>& entries);
  ~PluginHost();

  plugin::PluginRegistry& registry() { return registry_; }
  /// The settings tables of all usable plugins.
  std::vector<SettingsSchema> schemas();
  /// Creates plugin `name` (once). `config` gives it its table; null while there is none.
  Plugin& create(const std::string& name, Kind kind, const config::Config* config, const std::string& where);
  /// The adapter that accepts a config.json, and what it says of it. Throws FileError naming model_type and the families there are.
  LoadedModel load_model(const std::string& config_text, const std::string& source, const ModelOptions& options, bool with_operators);
  void set_run(int ranks, DeviceKind device, std::string run_folder, uint64_t seed);

 private:
  struct Created;
  plugin::PluginRegistry registry_;
  std::vector<std::unique_ptr<Created>> created_;
  int ranks_ = 1;
  DeviceKind device_ = DeviceKind::kCpu;
  std::string run_folder_;
  uint64_t seed_ = 0;
};

class PlanningCosts;
class PlanJudge;

class Session {
 public:
  Session(const std::string& config_path, const std::vector<std::string>& overrides);
  ~Session();

  const config::Config& config() const { return *config_; }
  /// The --set options it was made with.
  const std::vector<std::string>& overrides() const { return overrides_; }
  PluginHost& plugins() { return *plugins_; }
  const LoadedModel& model();
  DeviceKind device() const { return device_; }
  int ranks() const { return ranks_; }

  ExpertStrategy& experts(const std::string& name);
  ActivationStrategy& activations(const std::string& name);
  Selector& selector();
  /// Costs to plan a strategy's candidates with: calibrated where a calibration serves (runtime/calibrate.h), else analytic.
  CostTable costs(const std::string& experts);
  /// Where they come from: "analytic", or a calibration file and what of it is used.
  std::string costs_origin(const std::string& experts);
  /// Of what the calibration's file says; empty: there is none.
  std::string costs_checksum();
  /// What was measured for them; empty: nothing.
  const plan::Calibration& calibration();
  /// Plans with this calibration instead of a file's; `origin` says where it comes from.
  void calibrate_with(const plan::Calibration& calibration, const std::string& origin);
  /// Costs of one size of slices do not tell what other sizes take: by `part` of a step must a search gain with other slices and policies than the ones configured.
  void doubt_costs(double part) { costs_doubt_ = part; }
  double costs_doubt() const { return costs_doubt_; }
  /// What is known of this session's plans, whatever their budgets.
  PlanJudge& judge();
  /// The expert strategies to plan for: the one named, or every usable one when "auto".
  std::vector<std::string> expert_candidates();

 private:
  PlanningCosts& planning_costs();

  std::vector<std::string> overrides_;
  std::unique_ptr<PluginHost> plugins_;
  std::unique_ptr<config::Config> config_;
  std::unique_ptr<LoadedModel> model_;
  std::unique_ptr<PlanningCosts> costs_;
  double costs_doubt_ = 0;
  std::unique_ptr<PlanJudge> judge_;
  DeviceKind device_ = DeviceKind::kCpu;
  int ranks_ = 1;
};

}  // namespace oom::runtime
