#include "runtime/session.h"

#include <filesystem>

#include "base/text.h"
#include "checkpoint/hf_directory.h"
#include "hardware/gpu.h"
#include "model/first_layers.h"
#include "oom/ops/attention.h"
#include "plugin/plugin_guard.h"
#include "runtime/calibrate.h"
#include "runtime/plan_judge.h"
#include "runtime/tied_embeddings.h"

namespace oom::runtime {

struct PluginHost::Created {
  std::string name;
  Kind kind;
  const plugin::PluginLibrary* library = nullptr;
  HostServices services;
  std::string run_folder;
  SettingsTable settings;
  plugin::PluginInstance plugin;
};

PluginHost::PluginHost(const std::vector<std::string>& entries) : registry_(plugin::plugin_folders(plugin::process_search_places(entries))) {}

PluginHost::~PluginHost() {
  while (!created_.empty()) created_.pop_back();
}

std::vector<SettingsSchema> PluginHost::schemas() {
  std::vector<SettingsSchema> schemas;
  for (const plugin::PluginSettings& settings : registry_.settings_schemas()) {
    if (settings.schema) schemas.push_back(*settings.schema);
  }
  return schemas;
}

void PluginHost::set_run(int ranks, DeviceKind device, std::string run_folder, uint64_t seed) {
  ranks_ = ranks;
  device_ = device;
  run_folder_ = std::move(run_folder);
  seed_ = seed;
}

Plugin& PluginHost::create(const std::string& name, Kind kind, const config::Config* config, const std::string& where) {
  for (const auto& made : created_) {
    if (made->name == name && made->kind == kind) return *made->plugin;
  }
  auto made = std::make_unique<Created>();
  made->name = name;
  made->kind = kind;
  made->library = &registry_.load(name, kind, where);
  made->run_folder = run_folder_;
  made->services = plugin::engine_services();
  made->services.ranks = ranks_;
  made->services.device = device_;
  made->services.run_folder = made->run_folder;
  made->services.seed = seed_;
  if (config && made->library->settings_schema()) {
    made->settings = config->table(made->library->settings_schema()->table);
    made->services.settings = &made->settings;
  }
  made->plugin = made->library->create(made->services);
  created_.push_back(std::move(made));
  return *created_.back()->plugin;
}

LoadedModel PluginHost::load_model(const std::string& config_text, const std::string& source, const ModelOptions& options, bool with_operators) {
  const std::vector<std::string> families = registry_.available(Kind::kModelAdapter);
  for (const std::string& family : families) {
    const auto& adapter = dynamic_cast<const ModelAdapter&>(create(family, Kind::kModelAdapter, nullptr, {}));
    const ModelConfig config = ModelConfig::parse(config_text, source);
    const auto call = [&](const char* method, const auto& fn) { return plugin::guarded(family, method, plugin::kNoStep, fn); };
    if (!call("accepts", [&] { return adapter.accepts(config); })) continue;
    LoadedModel model{.adapter = &adapter, .description = call("describe", [&] { return adapter.describe(config, options); }), .operators = {}};
    if (!with_operators) return model;
    for (int layer = 0; layer < static_cast<int>(model.description.layers.size()); ++layer) {
      model.operators.mixers.push_back(call("mixer", [&] { return adapter.mixer(model.description, layer); }));
      model.operators.feed_forwards.push_back(call("feed_forward", [&] { return adapter.feed_forward(model.description, layer); }));
    }
    model.operators.final_norm = call("final_norm", [&] { return adapter.final_norm(model.description); });
    return model;
  }
  const ModelConfig config = ModelConfig::parse(config_text, source);
  throw FileError(cat(source, ": model_type: no model plugin takes \"", config.string("model_type", ""), "\"; families here: ", base::join(families, ", "),
                      ". Add its plugin's folder to engine.plugin_path"));
}

Session::Session(const std::string& config_path, const std::vector<std::string>& overrides) : overrides_(overrides) {
  const config::Engine engine = config::peek_engine(config_path, overrides);
  plugins_ = std::make_unique<PluginHost>(engine.plugin_path);
  const std::vector<SettingsSchema> schemas = plugins_->schemas();
  config_ = std::make_unique<config::Config>(config::load_config(config_path, overrides, schemas));

  for (const std::string& folder : config_->engine().plugin_path) {
    std::error_code error;
    if (!std::filesystem::is_directory(folder, error)) log_warn(config_->where("engine", "plugin_path"), ": ", folder, " is no folder: no plugin is found there");
  }

  const config::Engine& wanted = config_->engine();
  const hardware::GpuList gpus = wanted.device == config::DeviceKind::kCpu ? hardware::GpuList{} : hardware::list_gpus();
  device_ = wanted.device == config::DeviceKind::kCuda || (wanted.device == config::DeviceKind::kAuto && !gpus.gpus.empty()) ? DeviceKind::kCuda : DeviceKind::kCpu;
  if (wanted.device == config::DeviceKind::kAuto && device_ == DeviceKind::kCpu) log_info("device: no GPU (", gpus.why_none, "); running on the CPU device");
  ops::set_deterministic_attention(device_ == DeviceKind::kCuda && wanted.deterministic);
  ranks_ = static_cast<int>(wanted.ranks.value_or(device_ == DeviceKind::kCuda ? std::max<size_t>(1, gpus.gpus.size()) : 1));
  // A program holds every rank's stages: planning for more GPUs than one machine has would only exhaust this one.
  constexpr int kMostRanks = 32;
  if (ranks_ > kMostRanks) throw ConfigError(cat(config_->where("engine", "ranks"), ": must be at most ", kMostRanks, ", the GPUs of one machine; got ", ranks_));
  config::check_ranks_divide_batch(*config_, ranks_);
  plugins_->set_run(ranks_, device_, config_->output().dir, static_cast<uint64_t>(config_->model().seed));
}

Session::~Session() = default;

PlanningCosts& Session::planning_costs() {
  if (!costs_) costs_ = std::make_unique<PlanningCosts>(*this);
  return *costs_;
}

CostTable Session::costs(const std::string& experts) { return planning_costs().of(experts); }
std::string Session::costs_origin(const std::string& experts) { return planning_costs().origin(experts); }
std::string Session::costs_checksum() { return planning_costs().checksum(); }
const plan::Calibration& Session::calibration() { return planning_costs().calibration(); }
void Session::calibrate_with(const plan::Calibration& calibration, const std::string& origin) {
  costs_ = std::make_unique<PlanningCosts>(*this, calibration, origin, costs_ ? costs_->checksum() : std::string());
  judge_.reset();  // its times are by other costs
}

PlanJudge& Session::judge() {
  if (!judge_) judge_ = std::make_unique<PlanJudge>(*this);
  return *judge_;
}

const LoadedModel& Session::model() {
  if (!model_) {
    const std::string& folder = config_->model().path;
    std::string text = checkpoint::read_model_config(folder);
    if (const std::optional<int64_t> layers = config_->model().layers) text = first_layers(text, folder + "/config.json", *layers);
    if (config_->model().weights == config::WeightSource::kLoad) text = settle_tied_embeddings(*plugins_, text, folder);
    model_ = std::make_unique<LoadedModel>(plugins_->load_model(text, folder + "/config.json", {.yarn_factor = config_->model().yarn_factor}, /*with_operators=*/true));
  }
  return *model_;
}

ExpertStrategy& Session::experts(const std::string& name) {
  return dynamic_cast<ExpertStrategy&>(plugins_->create(name, Kind::kExpertStrategy, config_.get(), config_->where("engine", "experts")));
}
ActivationStrategy& Session::activations(const std::string& name) {
  return dynamic_cast<ActivationStrategy&>(plugins_->create(name, Kind::kActivationStrategy, config_.get(), config_->where("engine", "activations")));
}
Selector& Session::selector() {
  return dynamic_cast<Selector&>(plugins_->create(config_->engine().selector, Kind::kSelector, config_.get(), config_->where("engine", "selector")));
}

std::vector<std::string> Session::expert_candidates() {
  if (config_->engine().experts != "auto") return {config_->engine().experts};
  std::vector<std::string> usable = plugins_->registry().available(Kind::kExpertStrategy);
  if (usable.empty()) throw ConfigError(cat(config_->where("engine", "experts"), ": no expert strategy found; looked in engine.plugin_path, OOM_PLUGIN_PATH and the program's own folder"));
  return usable;
}

}  // namespace oom::runtime
