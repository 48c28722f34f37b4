/// The configuration of a run: the core's tables as typed structs, and the tables of plugins.
///
/// `load_config` reads the file and the --set overrides, reports every fault of both at once, then checks rules between keys. The
/// result does not change any more. What depends on config.json, on devices or on memory is checked later by its owner, with
/// `Config::where` to name the place. `configs/reference.toml` documents each key; `core_schemas()` is where they are declared.
///
/// A `std::optional` without a value means "auto" or left out: the engine decides. In paths of these structs "~" is the home folder; the
/// tables, and so the resolved configuration, keep what was written.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "config/choices.h"
#include "oom/settings.h"

namespace oom::config {

struct Model {
  std::string path;  ///< folder with config.json
  WeightSource weights = WeightSource::kLoad;
  int64_t seed = 0;
  double yarn_factor = 1.0;
  std::optional<int64_t> layers;  ///< only the first so many decoder layers
};

struct Data {
  DataFormat format = DataFormat::kMegatron;
  std::optional<std::string> path;  ///< without one, only commands that read no data can run
  int64_t sequence_length = 4096;   ///< tokens
  Documents documents = Documents::kJoined;
  std::optional<int64_t> shuffle_seed;  ///< none: in order
  TargetMask mask = TargetMask::kAuto;
  bool allow_change = false;  ///< a resumed run may read other samples than the checkpoint's
};

struct Train {
  int64_t steps = 100;
  int64_t global_batch = 32;  ///< sequences a step over all ranks
  double learning_rate = 1e-5;
  Schedule schedule = Schedule::kConstant;
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0;  ///< of wsd
  double min_learning_rate = 0.0;
  double weight_decay = 0.01;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double clip_norm = 0.0;          ///< 0: off
  std::optional<Updates> updates;  ///< see `resolved_updates`
  std::optional<double> router_aux_loss;  ///< none: what config.json asks for
  bool drain = false;
  bool decay_norms = true;

  /// Deferred when clipping and not said otherwise.
  Updates resolved_updates() const { return updates.value_or(clip_norm > 0 ? Updates::kDeferred : Updates::kOverlapped); }
};

struct Precision {
  Dtype compute = Dtype::kBf16;
  std::optional<Dtype> gradients;  ///< none: as `compute`

  Dtype resolved_gradients() const { return gradients.value_or(compute); }
};

struct Engine {
  DeviceKind device = DeviceKind::kAuto;
  std::optional<int64_t> ranks;   ///< none: every GPU; on the CPU device 1
  std::string experts = "auto";   ///< "auto" or the name of an expert strategy
  std::string activations = "offload";
  std::string selector = "selector";  ///< decides when experts is "auto"
  std::optional<std::string> plan;         ///< a plan file to execute as it stands
  std::optional<std::string> calibration;  ///< a calibration file
  std::vector<std::string> plugin_path;
  bool allow_plan_mismatch = false;
  bool deterministic = false;  ///< on GPUs attention's backward repeats bit for bit
  double watchdog_seconds = 600;  ///< 0: off
};

struct Budget {
  std::optional<int64_t> gpu_bytes;  ///< none: what the device has, less a margin
  int64_t headroom_bytes = int64_t{1} << 30;
  std::optional<int64_t> host_bytes;            ///< of the whole machine
  std::vector<int64_t> host_bytes_by_node;      ///< per NUMA node; empty when `host` is one size or left out
};

struct State {
  LayerChoice resident;
  Placement placement = Placement::kInterleaved;
  std::optional<OrdinaryResidency> resident_ordinary;
  std::optional<WeightSupply> weights;
  std::optional<WeightSupply> resident_weights;  ///< the same choice for resident shards, on the GPU
};

struct Transfer {
  int64_t windows = 2;
  int64_t gradient_slots = 2;
  std::optional<int64_t> ordinary_gradient_slots;
  int64_t h2d_chunk_bytes = int64_t{64} << 20;
  int64_t d2h_chunk_bytes = int64_t{64} << 20;
  std::optional<Delivery> ordinary_delivery;
  std::optional<GradientReduction> gradient_reduction;
};

struct Checkpoint {
  int64_t every = 0;  ///< steps; 0: only at the end and when interrupted
  bool at_end = true;
  int64_t keep = 2;
  int64_t keep_best = 0;  ///< by evaluation loss, besides the newest
};

struct Output {
  std::string dir = "runs/run";
  bool overwrite = false;
  int64_t trace_first_steps = 0;     ///< so many steps from the first are traced, besides `trace_steps`
  std::vector<int64_t> trace_steps;  ///< counted from 1, ascending
  int64_t expert_load_every = 100;   ///< steps; 0: never
  bool tensorboard = true;

  bool traces(int64_t step) const;
  bool traces_any() const { return trace_first_steps > 0 || !trace_steps.empty(); }
};

struct Eval {
  int64_t every = 0;                 ///< steps; 0: not during training
  std::optional<std::string> path;   ///< held-out files
  std::optional<DataFormat> format;  ///< none: as data.format
  int64_t holdout_samples = 0;       ///< last samples of the training data
  std::optional<int64_t> samples;    ///< none: all

  bool held_out() const { return path || holdout_samples > 0; }
};

/// The struct of a checked [engine] table, which is read before the rest (see `peek_engine`).
Engine read_engine(const SettingsTable& table);

class Config {
 public:
  /// Turns checked tables into structs; for the loader. `schemas`: the core's, then the plugins'; `tables` has one for each.
  Config(std::string path, std::vector<SettingsSchema> schemas, std::map<std::string, SettingsTable> tables);

  const Model& model() const { return model_; }
  const Data& data() const { return data_; }
  const Train& train() const { return train_; }
  const Precision& precision() const { return precision_; }
  const Engine& engine() const { return engine_; }
  const Budget& budget() const { return budget_; }
  const State& state() const { return state_; }
  const Transfer& transfer() const { return transfer_; }
  const Checkpoint& checkpoint() const { return checkpoint_; }
  const Output& output() const { return output_; }
  const Eval& eval() const { return eval_; }

  /// The table of a plugin, or of the core by its TOML name. Raises Error when there is none.
  const SettingsTable& table(std::string_view name) const;
  const std::vector<SettingsSchema>& schemas() const { return schemas_; }
  /// The file this was read from.
  const std::string& path() const { return path_; }
  /// Begins the message of a later check: where("engine", "ranks") is "run.toml:9:14: engine.ranks".
  std::string where(std::string_view table, std::string_view key) const { return this->table(table).where(key); }

  /// The same values for every key; the files they came from do not matter.
  bool operator==(const Config& other) const { return tables_ == other.tables_; }

 private:
  std::string path_;
  std::vector<SettingsSchema> schemas_;
  std::map<std::string, SettingsTable> tables_;
  Model model_;
  Data data_;
  Train train_;
  Precision precision_;
  Engine engine_;
  Budget budget_;
  State state_;
  Transfer transfer_;
  Checkpoint checkpoint_;
  Output output_;
  Eval eval_;
};

/// The tables of the core: model, data, train, precision, engine, budget, state, transfer, checkpoint, output, eval.
const std::vector<SettingsSchema>& core_schemas();

/// Reads `path`, applies `overrides` ("table.key=value": the value is TOML, and what is no TOML is a text; later ones win), and
/// checks all of it. `plugin_schemas` are those of every plugin found, in use or not. Raises ConfigError with one line a fault.
Config load_config(const std::string& path, std::span<const std::string> overrides, std::span<const SettingsSchema> plugin_schemas);
/// The same from text; `name` stands for the path.
Config parse_config(std::string_view text, const std::string& name, std::span<const std::string> overrides,
                    std::span<const SettingsSchema> plugin_schemas);
/// `config` with further overrides, checked again: for short runs that vary a configuration.
Config with_overrides(const Config& config, std::span<const std::string> overrides);

/// What must be known before plugins, and so their tables, can be: read leniently from [engine] alone. Other faults are left
/// to `load_config`; text that is no TOML is refused here.
Engine peek_engine(const std::string& path, std::span<const std::string> overrides);

/// Raises ConfigError, with batches and rank counts near it, unless `ranks` divides train.global_batch: for the owner of the
/// devices, when `engine.ranks` was left out. `load_config` has called it when the number was known.
void check_ranks_divide_batch(const Config& config, int64_t ranks);

/// Every key with its value, as TOML that loads to an equal Config; keys that are left out and have no default stand in comments.
std::string resolved_toml(const Config& config);

}  // namespace oom::config
