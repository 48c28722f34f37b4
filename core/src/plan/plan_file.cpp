#include "plan/plan_file.h"

#include <algorithm>

#include "base/text.h"
#include "config/choices.h"
#include "config/toml_values.h"

namespace oom::plan {
namespace {

using config::TomlValue;

constexpr int64_t kMostLayers = 100000;

const char* type_name(ElementType type) { return type == ElementType::kFloat32 ? "fp32" : "bf16"; }

[[noreturn]] void refuse(const TomlValue& value, const std::string& key, const std::string& what) {
  throw FileError(cat(value.position().text(), ": ", key, ": ", what, "; got ", value.text()));
}

ElementType read_type(const TomlValue& table, const char* key) {
  const std::string& text = table.get_text(key);
  if (text == "fp32") return ElementType::kFloat32;
  if (text == "bf16") return ElementType::kBfloat16;
  refuse(table.get(key), key, "must be bf16 or fp32");
}

int64_t read_integer(const TomlValue& table, const char* key, int64_t low, int64_t high) {
  const int64_t value = table.get_integer(key);
  if (value < low || value > high) refuse(table.get(key), key, cat("must be from ", low, " to ", high));
  return value;
}

std::vector<int> read_list(const TomlValue& table, const char* key, int64_t limit) {
  std::vector<int> values;
  for (const int64_t value : table.get_integers(key)) {
    if (value < 0 || value >= limit) refuse(table.get(key), key, cat("every element must be from 0 to ", limit - 1));
    values.push_back(static_cast<int>(value));
  }
  return values;
}

std::vector<int> read_layers(const TomlValue& table, const char* key) {
  const std::vector<int> layers = read_list(table, key, kMostLayers);
  for (size_t i = 1; i < layers.size(); ++i) {
    if (layers[i] <= layers[i - 1]) refuse(table.get(key), key, "layers must ascend, each once");
  }
  return layers;
}

const std::string& read_name(const TomlValue& table, const char* key) {
  const std::string& name = table.get_text(key);
  const bool plain = !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; });
  if (!plain) refuse(table.get(key), key, "must be the name of a plugin: lower-case letters, digits and _");
  return name;
}

// A strategy's own choice: plain values and lists of them, as settings are.
bool is_setting(const TomlValue& value) {
  if (value.is(TomlValue::Kind::kTable)) return false;
  if (!value.is(TomlValue::Kind::kArray)) return true;
  const TomlValue::Array& elements = value.as_array();
  return std::none_of(elements.begin(), elements.end(), [](const TomlValue& element) { return element.is(TomlValue::Kind::kTable) || element.is(TomlValue::Kind::kArray); });
}

void check_keys(const TomlValue& table, const std::string& where, const std::vector<std::string>& known) {
  for (const TomlValue::Member& member : table.as_table()) {
    if (std::find(known.begin(), known.end(), member.key) != known.end()) continue;
    const std::optional<std::string> near = base::nearest_name(member.key, known);
    throw FileError(cat(member.position.text(), ": ", where, member.key, ": unknown key", near ? cat("; near it: ", *near) : cat("; keys here: ", base::join(known, ", "))));
  }
}

}  // namespace

std::string plan_toml(const Plan& plan, const PlanPrediction& prediction) {
  TomlValue root;
  root.set("version", kPlanVersion);
  root.set("experts", plan.experts);
  root.set("activations", plan.activations);
  root.set("device", plan.device == DeviceKind::kCuda ? "cuda" : "cpu");
  root.set("ranks", plan.ranks);
  root.set("numa_nodes", plan.numa_nodes);
  root.set("node_of_rank", plan.node_of_rank);
  root.set("deferred_layers", plan.deferred_layers);
  if (!prediction.machine.empty()) root.set("machine", prediction.machine);
  if (!prediction.calibration.empty()) root.set("calibration", prediction.calibration);
  if (!prediction.calibration_checksum.empty()) root.set("calibration_checksum", prediction.calibration_checksum);
  TomlValue& workload = root.table("workload");
  workload.set("model", plan.workload.model);
  workload.set("sequence_length", plan.workload.sequence_length);
  workload.set("global_batch", plan.workload.global_batch);
  workload.set("compute", type_name(plan.workload.compute));
  workload.set("gradients", type_name(plan.workload.gradients));
  workload.set("isolated_documents", plan.workload.isolated_documents);
  workload.set("clips", plan.workload.clips);
  workload.set("router_aux_loss", plan.workload.router_aux_loss);
  TomlValue& state = root.table("state");
  state.set("resident_layers", plan.resident_layers);
  state.set("resident_ordinary", std::string(config::word(plan.resident_ordinary)));
  state.set("cached_weights", plan.cached_weights);
  state.set("resident_cached_weights", plan.resident_cached_weights);
  state.set("retained_feed_forward", plan.retained_feed_forward);
  state.set("retained_attention", plan.retained_attention);
  TomlValue& transfer = root.table("transfer");
  transfer.set("windows", plan.transfer.windows);
  transfer.set("gradient_slots", plan.transfer.gradient_slots);
  transfer.set("ordinary_gradient_slots", plan.transfer.ordinary_gradient_slots);
  transfer.set("h2d_chunk_bytes", plan.transfer.h2d_chunk_bytes);
  transfer.set("d2h_chunk_bytes", plan.transfer.d2h_chunk_bytes);
  transfer.set("shard_delivery_ordinary", plan.transfer.shard_delivery_ordinary);
  transfer.set("reduce_on_gpu", plan.transfer.reduce_on_gpu);
  TomlValue& settings = root.table("settings");
  for (const auto& [plugin, values] : plan.settings) {
    TomlValue& table = settings.table(plugin);
    for (const auto& [key, value] : values) table.set(key, config::parse_toml(cat("value = ", value), "plan settings").get("value"));
  }
  TomlValue& predicted = root.table("predicted");
  predicted.set("step_seconds", prediction.step_seconds);
  predicted.set("gpu_peak_bytes", prediction.gpu_peak_bytes);
  predicted.set("host_peak_bytes", prediction.host_peak_bytes);
  return cat("# How oom executes this model on this machine. Edit it and run it with engine.plan; [predicted] is for people.\n", config::write_toml(root));
}

namespace {

Plan read_plan(const TomlValue& root, PlanPrediction* prediction) {
  check_keys(root, "", {"version", "experts", "activations", "device", "ranks", "numa_nodes", "node_of_rank", "deferred_layers", "machine", "calibration", "calibration_checksum", "workload", "state", "transfer", "settings", "predicted"});
  Plan plan;
  if (root.get_integer("version") != kPlanVersion) refuse(root.get("version"), "version", cat("this program reads version ", kPlanVersion, "; make the plan again with oom plan"));
  plan.version = kPlanVersion;
  plan.experts = read_name(root, "experts");
  plan.activations = read_name(root, "activations");
  const std::string& device = root.get_text("device");
  if (device != "cuda" && device != "cpu") refuse(root.get("device"), "device", "must be cuda or cpu");
  plan.device = device == "cuda" ? DeviceKind::kCuda : DeviceKind::kCpu;
  plan.ranks = static_cast<int>(read_integer(root, "ranks", 1, 1024));
  plan.numa_nodes = static_cast<int>(read_integer(root, "numa_nodes", 1, 8));
  plan.node_of_rank = read_list(root, "node_of_rank", plan.numa_nodes);
  if (static_cast<int>(plan.node_of_rank.size()) != plan.ranks) refuse(root.get("node_of_rank"), "node_of_rank", cat("must have one node for each of ", plan.ranks, " ranks"));
  plan.deferred_layers = static_cast<int>(read_integer(root, "deferred_layers", 0, kMostLayers));

  const TomlValue& workload = root.get_table("workload");
  check_keys(workload, "workload.", {"model", "sequence_length", "global_batch", "compute", "gradients", "isolated_documents", "clips", "router_aux_loss"});
  plan.workload.model = workload.get_text("model");
  plan.workload.sequence_length = read_integer(workload, "sequence_length", 1, int64_t{1} << 40);
  plan.workload.global_batch = read_integer(workload, "global_batch", 1, int64_t{1} << 40);
  if (plan.workload.global_batch % plan.ranks != 0) refuse(workload.get("global_batch"), "workload.global_batch", cat("must divide by ranks = ", plan.ranks));
  plan.workload.compute = read_type(workload, "compute");
  plan.workload.gradients = read_type(workload, "gradients");
  plan.workload.isolated_documents = workload.get_bool("isolated_documents");
  plan.workload.clips = workload.get_bool("clips");
  plan.workload.router_aux_loss = workload.get_number("router_aux_loss");
  if (plan.workload.router_aux_loss < 0) refuse(workload.get("router_aux_loss"), "workload.router_aux_loss", "must be at least 0");

  const TomlValue& state = root.get_table("state");
  check_keys(state, "state.", {"resident_layers", "resident_ordinary", "cached_weights", "resident_cached_weights", "retained_feed_forward", "retained_attention"});
  plan.resident_layers = read_layers(state, "resident_layers");
  const auto& words = config::kWords<OrdinaryResidency>;
  const TomlValue& ordinary = state.get("resident_ordinary");
  const auto word = ordinary.is(TomlValue::Kind::kText) ? std::find(words.begin(), words.end(), ordinary.as_text()) : words.end();
  if (word == words.end()) refuse(ordinary, "state.resident_ordinary", "must be \"none\", \"embedding\" or \"all\"");
  plan.resident_ordinary = static_cast<OrdinaryResidency>(word - words.begin());
  plan.cached_weights = state.get_bool("cached_weights");
  plan.resident_cached_weights = state.get_bool("resident_cached_weights");
  plan.retained_feed_forward = read_layers(state, "retained_feed_forward");
  plan.retained_attention = read_layers(state, "retained_attention");

  const TomlValue& transfer = root.get_table("transfer");
  check_keys(transfer, "transfer.", {"windows", "gradient_slots", "ordinary_gradient_slots", "h2d_chunk_bytes", "d2h_chunk_bytes", "shard_delivery_ordinary", "reduce_on_gpu"});
  plan.transfer.windows = static_cast<int>(read_integer(transfer, "windows", 1, 64));
  plan.transfer.gradient_slots = static_cast<int>(read_integer(transfer, "gradient_slots", 1, 1024));
  plan.transfer.ordinary_gradient_slots = static_cast<int>(read_integer(transfer, "ordinary_gradient_slots", 1, 1024));
  plan.transfer.h2d_chunk_bytes = read_integer(transfer, "h2d_chunk_bytes", 4096, int64_t{1} << 40);
  plan.transfer.d2h_chunk_bytes = read_integer(transfer, "d2h_chunk_bytes", 4096, int64_t{1} << 40);
  plan.transfer.shard_delivery_ordinary = transfer.get_bool("shard_delivery_ordinary");
  plan.transfer.reduce_on_gpu = transfer.get_bool("reduce_on_gpu");

  if (root.find("settings")) {
    const TomlValue& settings = root.get_table("settings");
    for (const TomlValue::Member& plugin : settings.as_table()) {
      for (const TomlValue::Member& setting : settings.get_table(plugin.key).as_table()) {
        if (!is_setting(setting.value)) refuse(setting.value, cat("settings.", plugin.key, ".", setting.key), "must be a plain value or a list of them");
        plan.settings[plugin.key][setting.key] = config::write_toml_value(setting.value);
      }
    }
  }
  PlanPrediction read;
  if (root.find("machine")) read.machine = root.get_text("machine");
  if (root.find("calibration")) read.calibration = root.get_text("calibration");
  if (root.find("calibration_checksum")) read.calibration_checksum = root.get_text("calibration_checksum");
  if (root.find("predicted")) {
    const TomlValue& predicted = root.get_table("predicted");
    check_keys(predicted, "predicted.", {"step_seconds", "gpu_peak_bytes", "host_peak_bytes"});
    read.step_seconds = predicted.get_number("step_seconds");
    read.gpu_peak_bytes = predicted.get_integers("gpu_peak_bytes");
    read.host_peak_bytes = predicted.get_integers("host_peak_bytes");
  }
  if (prediction) *prediction = std::move(read);
  return plan;
}

}  // namespace

Plan parse_plan(const std::string& text, const std::string& name, PlanPrediction* prediction) { return read_plan(config::parse_toml(text, name), prediction); }
Plan load_plan(const std::string& path, PlanPrediction* prediction) { return read_plan(config::parse_toml_file(path), prediction); }

std::vector<std::string> plan_differences(const Plan& plan, const Plan& wanted) {
  std::vector<std::string> differences;
  const auto compare = [&](const char* key, const auto& made_for, const auto& now) {
    if (!(made_for == now)) differences.push_back(cat(key, ": the plan has ", made_for, ", this run ", now));
  };
  const auto device = [](const Plan& of) { return std::string(of.device == DeviceKind::kCuda ? "cuda" : "cpu"); };
  compare("ranks", plan.ranks, wanted.ranks);
  compare("device", device(plan), device(wanted));
  compare("workload.model", plan.workload.model, wanted.workload.model);
  compare("workload.sequence_length", plan.workload.sequence_length, wanted.workload.sequence_length);
  compare("workload.global_batch", plan.workload.global_batch, wanted.workload.global_batch);
  compare("workload.compute", std::string(type_name(plan.workload.compute)), std::string(type_name(wanted.workload.compute)));
  compare("workload.gradients", std::string(type_name(plan.workload.gradients)), std::string(type_name(wanted.workload.gradients)));
  compare("workload.isolated_documents", plan.workload.isolated_documents, wanted.workload.isolated_documents);
  compare("workload.clips", plan.workload.clips, wanted.workload.clips);
  compare("workload.router_aux_loss", plan.workload.router_aux_loss, wanted.workload.router_aux_loss);
  return differences;
}

void refuse_differences(const std::vector<std::string>& differences, const std::string& path) {
  if (!differences.empty()) {
    throw FileError(cat(path, ": this plan was made for another run:\n  ", base::join(differences, "\n  "), "\nMake it again with oom plan, or insist with --set engine.allow_plan_mismatch=true"));
  }
}

}  // namespace oom::plan
