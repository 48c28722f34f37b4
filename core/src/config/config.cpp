#include "config/config.h"

#include <algorithm>

#include "base/file.h"

namespace oom::config {
namespace {

template <typename E>
std::optional<E> find_choice(const SettingsTable& table, std::string_view key) {
  return table.is_auto(key) ? std::nullopt : choice_of<E>(table.get_text(key));
}

template <typename E>
E get_choice(const SettingsTable& table, std::string_view key) {
  const auto choice = choice_of<E>(table.get_text(key));
  OOM_CHECK(choice, table.name(), ".", key, " has a word without an enumerator: ", table.get_text(key));
  return *choice;
}

std::optional<std::string> find_path(const SettingsTable& table, std::string_view key) {
  if (!table.has_value(key)) return std::nullopt;
  return base::expand_home(table.get_text(key)).string();
}

Model to_model(const SettingsTable& table) {
  return {.path = base::expand_home(table.get_text("path")).string(),
          .weights = get_choice<WeightSource>(table, "weights"),
          .seed = table.get_integer("seed"),
          .yarn_factor = table.get_number("yarn_factor"),
          .layers = table.find_integer("layers")};
}

Data to_data(const SettingsTable& table) {
  return {.format = get_choice<DataFormat>(table, "format"),
          .path = find_path(table, "path"),
          .sequence_length = table.get_integer("sequence_length"),
          .documents = get_choice<Documents>(table, "documents"),
          .shuffle_seed = table.find_integer("shuffle_seed"),
          .mask = get_choice<TargetMask>(table, "mask"),
          .allow_change = table.get_bool("allow_change")};
}

Train to_train(const SettingsTable& table) {
  const std::vector<double>& betas = table.get_numbers("betas");
  return {.steps = table.get_integer("steps"),
          .global_batch = table.get_integer("global_batch"),
          .learning_rate = table.get_number("learning_rate"),
          .schedule = get_choice<Schedule>(table, "schedule"),
          .warmup_steps = table.get_integer("warmup_steps"),
          .decay_steps = table.get_integer("decay_steps"),
          .min_learning_rate = table.get_number("min_learning_rate"),
          .weight_decay = table.get_number("weight_decay"),
          .beta1 = betas.at(0),
          .beta2 = betas.at(1),
          .eps = table.get_number("eps"),
          .clip_norm = table.get_number("clip_norm"),
          .updates = find_choice<Updates>(table, "updates"),
          .router_aux_loss = table.has_value("router_aux_loss") ? std::optional(table.get_number("router_aux_loss")) : std::nullopt,
          .drain = table.get_bool("drain"),
          .decay_norms = table.get_bool("decay_norms")};
}

Budget to_budget(const SettingsTable& table) {
  Budget budget{.gpu_bytes = table.find_integer("gpu"), .headroom_bytes = table.get_bytes("headroom")};
  if (const auto* by_node = std::get_if<std::vector<int64_t>>(&table.get("host"))) {
    budget.host_bytes_by_node = *by_node;
  } else {
    budget.host_bytes = table.find_integer("host");
  }
  return budget;
}

State to_state(const SettingsTable& table) {
  return {.resident = table.get_layers("resident"),
          .placement = get_choice<Placement>(table, "placement"),
          .resident_ordinary = find_choice<OrdinaryResidency>(table, "resident_ordinary"),
          .weights = find_choice<WeightSupply>(table, "weights"),
          .resident_weights = find_choice<WeightSupply>(table, "resident_weights")};
}

Transfer to_transfer(const SettingsTable& table) {
  return {.windows = table.get_integer("windows"),
          .gradient_slots = table.get_integer("gradient_slots"),
          .ordinary_gradient_slots = table.find_integer("ordinary_gradient_slots"),
          .h2d_chunk_bytes = table.get_bytes("h2d_chunk"),
          .d2h_chunk_bytes = table.get_bytes("d2h_chunk"),
          .ordinary_delivery = find_choice<Delivery>(table, "ordinary_delivery"),
          .gradient_reduction = find_choice<GradientReduction>(table, "gradient_reduction")};
}

Output to_output(const SettingsTable& table) {
  Output output{.dir = base::expand_home(table.get_text("dir")).string(), .overwrite = table.get_bool("overwrite"), .expert_load_every = table.get_integer("expert_load_every"), .tensorboard = table.get_bool("tensorboard")};
  if (const auto* steps = std::get_if<std::vector<int64_t>>(&table.get("trace_steps"))) {
    output.trace_steps = *steps;
    std::sort(output.trace_steps.begin(), output.trace_steps.end());
  } else {
    output.trace_first_steps = table.find_integer("trace_steps").value_or(0);
  }
  return output;
}

Eval to_eval(const SettingsTable& table) {
  return {.every = table.get_integer("every"),
          .path = find_path(table, "path"),
          .format = find_choice<DataFormat>(table, "format"),
          .holdout_samples = table.get_integer("holdout_samples"),
          .samples = table.find_integer("samples")};
}

}  // namespace

bool Output::traces(int64_t step) const {
  return step <= trace_first_steps || std::binary_search(trace_steps.begin(), trace_steps.end(), step);
}

Config::Config(std::string path, std::vector<SettingsSchema> schemas, std::map<std::string, SettingsTable> tables)
    : path_(std::move(path)), schemas_(std::move(schemas)), tables_(std::move(tables)) {
  model_ = to_model(table("model"));
  data_ = to_data(table("data"));
  train_ = to_train(table("train"));
  precision_ = {.compute = get_choice<Dtype>(table("precision"), "compute"), .gradients = find_choice<Dtype>(table("precision"), "gradients")};
  engine_ = read_engine(table("engine"));
  budget_ = to_budget(table("budget"));
  state_ = to_state(table("state"));
  transfer_ = to_transfer(table("transfer"));
  checkpoint_ = {.every = table("checkpoint").get_integer("every"),
                 .at_end = table("checkpoint").get_bool("at_end"),
                 .keep = table("checkpoint").get_integer("keep"),
                 .keep_best = table("checkpoint").get_integer("keep_best")};
  output_ = to_output(table("output"));
  eval_ = to_eval(table("eval"));
}

Engine read_engine(const SettingsTable& table) {
  std::vector<std::string> plugin_path;
  for (const std::string& folder : table.get_texts("plugin_path")) plugin_path.push_back(base::expand_home(folder).string());
  return {.device = get_choice<DeviceKind>(table, "device"),
          .ranks = table.find_integer("ranks"),
          .experts = table.get_text("experts"),
          .activations = table.get_text("activations"),
          .selector = table.get_text("selector"),
          .plan = find_path(table, "plan"),
          .calibration = find_path(table, "calibration"),
          .plugin_path = std::move(plugin_path),
          .allow_plan_mismatch = table.get_bool("allow_plan_mismatch"),
          .deterministic = table.get_bool("deterministic"),
          .watchdog_seconds = table.get_number("watchdog_seconds")};
}

const SettingsTable& Config::table(std::string_view name) const {
  const auto found = tables_.find(std::string(name));
  OOM_CHECK(found != tables_.end(), "the configuration has no table [", name, "]");
  return found->second;
}

}  // namespace oom::config
