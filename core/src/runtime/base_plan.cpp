#include "runtime/base_plan.h"

#include <algorithm>

#include "base/text.h"
#include "oom/log.h"
#include "plan/plan_file.h"
#include "plugin/plugin_guard.h"
#include "runtime/calibrate.h"
#include "runtime/residency.h"

namespace oom::runtime {
namespace {

ElementType element(config::Dtype type) { return type == config::Dtype::kFp32 ? ElementType::kFloat32 : ElementType::kBfloat16; }

// A plugin's table in a plan has keys of its schema, with values that it takes.
void check_settings(Session& session, const Plan& plan, const std::string& path) {
  for (const auto& [plugin, values] : plan.settings) {
    const SettingsSchema* schema = nullptr;
    for (const SettingsSchema& known : session.config().schemas()) {
      if (known.table == plugin) schema = &known;
    }
    if (!schema) throw FileError(cat(path, ": settings.", plugin, ": no plugin of that name has settings here; remove the table, or add its folder to engine.plugin_path"));
    try {
      (void)parse_settings(*schema, values, cat(path, ": settings.", plugin));
    } catch (const ConfigError& error) {
      throw FileError(error.what());
    }
  }
}

void check_plugin(Session& session, const std::string& name, Kind kind, const std::string& path, const char* key) {
  const std::vector<std::string> names = session.plugins().registry().available(kind);
  if (std::find(names.begin(), names.end(), name) != names.end()) return;
  throw FileError(cat(path, ": ", key, ": no usable plugin '", name, "'; there are: ", base::join(names, ", "), ". oom doctor says why others are not usable"));
}

void check_layers(const Plan& plan, const ModelDescription& model, const std::string& path) {
  const std::vector<int> routed = routed_layers(model);
  for (const int layer : plan.resident_layers) {
    if (!std::binary_search(routed.begin(), routed.end(), layer)) throw FileError(cat(path, ": state.resident_layers: layer ", layer, " of this model has no routed experts"));
  }
  const int count = static_cast<int>(model.layers.size());
  for (const auto& [key, layers] : {std::pair{"retained_feed_forward", &plan.retained_feed_forward}, std::pair{"retained_attention", &plan.retained_attention}}) {
    if (!layers->empty() && layers->back() >= count) throw FileError(cat(path, ": state.", key, ": the model has layers 0 to ", count - 1, "; got ", layers->back()));
  }
}

void check_isolation(const config::Config& config, const LoadedModel& model) {
  for (size_t layer = 0; layer < model.operators.mixers.size(); ++layer) {
    if (model.operators.mixers[layer]->isolates_documents()) continue;
    throw ConfigError(cat(config.where("data", "documents"), ": isolation of documents in layers of ", model.description.layers[layer].mixer, " is not built yet; cure: \"joined\""));
  }
}

}  // namespace

Plan base_plan(Session& session, const Machine& machine, Purpose purpose) {
  const config::Config& config = session.config();
  const ModelDescription& model = session.model().description;
  Plan plan;
  plan.activations = config.engine().activations;
  plan.device = session.device();
  plan.ranks = session.ranks();
  plan.numa_nodes = choose_numa_nodes(config, machine, purpose);
  plan.node_of_rank = choose_node_of_rank(machine, plan.device, plan.ranks, plan.numa_nodes);
  plan.workload = {.model = cat(model.family, " of ", model.layers.size(), " layers, ", model.total_parameters(), " parameters"),
                   .sequence_length = config.data().sequence_length,
                   .global_batch = config.train().global_batch,
                   .compute = element(config.precision().compute),
                   .gradients = element(config.precision().resolved_gradients()),
                   .isolated_documents = config.data().documents == config::Documents::kIsolated,
                   .clips = config.train().clip_norm > 0,
                   .router_aux_loss = config.train().router_aux_loss.value_or(model.router_aux_loss)};
  if (plan.workload.isolated_documents) check_isolation(config, session.model());
  const config::Transfer& transfer = config.transfer();
  plan.transfer.windows = static_cast<int>(transfer.windows);
  plan.transfer.gradient_slots = static_cast<int>(transfer.gradient_slots);
  plan.transfer.ordinary_gradient_slots = static_cast<int>(transfer.ordinary_gradient_slots.value_or(transfer.gradient_slots));
  plan.transfer.h2d_chunk_bytes = transfer.h2d_chunk_bytes;
  plan.transfer.d2h_chunk_bytes = transfer.d2h_chunk_bytes;
  plan.transfer.shard_delivery_ordinary = transfer.ordinary_delivery != config::Delivery::kFull;
  plan.transfer.reduce_on_gpu = config.transfer().gradient_reduction != config::GradientReduction::kHost;
  plan.resident_layers = stated_residency(config, model).value_or(std::vector<int>{});
  plan.resident_ordinary = config.state().resident_ordinary.value_or(OrdinaryResidency::kNone);
  plan.cached_weights = config.state().weights != config::WeightSupply::kConvert;
  plan.resident_cached_weights = config.state().resident_weights == config::WeightSupply::kCached;
  if (config.train().resolved_updates() == config::Updates::kDeferred) plan.deferred_layers = static_cast<int>(model.layers.size());
  return plan;
}

void check_strategies(Session& session, Plan& plan, const std::string& path) {
  const ModelDescription& model = session.model().description;
  try {
    plugin::guarded(plan.experts, "check", plugin::kNoStep, [&] { session.experts(plan.experts).check(model, plan); });
    plugin::guarded(plan.activations, "check", plugin::kNoStep, [&] { session.activations(plan.activations).check(model, plan); });
  } catch (const ConfigError& error) {
    throw FileError(cat(path, ": ", error.what()));
  }
}

bool may_choose_deferral(const config::Config& config) { return !config.train().updates && config.train().clip_norm == 0; }

Plan load_stated_plan(Session& session, const Plan& wanted, const Machine& machine) {
  const config::Engine& engine = session.config().engine();
  const std::string& path = *engine.plan;
  plan::PlanPrediction made;
  Plan plan = plan::load_plan(path, &made);
  const int layers = static_cast<int>(session.model().description.layers.size());
  std::vector<std::string> differences = plan::plan_differences(plan, wanted);
  const std::string here = machine_of(session);
  if (machine.is_target && !made.machine.empty() && made.machine != here) differences.push_back(cat("machine: the plan is for ", made.machine, ", this one is ", here));
  if (!made.calibration.empty() && (machine.is_target || engine.calibration) && made.calibration_checksum != session.costs_checksum()) {
    differences.push_back(cat("calibration: the plan was made with ", made.calibration, made.calibration_checksum.empty() ? "" : cat(" (", made.calibration_checksum, ")"), ", this run has ",
                              session.costs_origin(plan.experts), session.costs_checksum().empty() ? "" : cat(" (", session.costs_checksum(), ")")));
  }
  if (engine.allow_plan_mismatch) {
    if (plan.numa_nodes != wanted.numa_nodes) differences.push_back(cat("numa_nodes: the plan has ", plan.numa_nodes, ", this run ", wanted.numa_nodes));
    for (const std::string& difference : differences) log_warn("plan: ", path, ": ", difference, "; this run's is taken (engine.allow_plan_mismatch)");
    plan.device = wanted.device;
    plan.workload = wanted.workload;
    if (plan.ranks != wanted.ranks || plan.numa_nodes != wanted.numa_nodes) {
      plan.ranks = wanted.ranks;
      plan.numa_nodes = wanted.numa_nodes;
      plan.node_of_rank = wanted.node_of_rank;
    }
    plan.deferred_layers = plan.workload.clips ? layers : std::min(plan.deferred_layers, layers);
  } else {
    plan::refuse_differences(differences, path);
  }
  if (plan.deferred_layers > layers) throw FileError(cat(path, ": deferred_layers: must be at most the model's ", layers, " layers; got ", plan.deferred_layers));
  if (plan.workload.clips && plan.deferred_layers < layers) {
    throw FileError(cat(path, ": deferred_layers: must be ", layers, ", all of them, because train.clip_norm needs every gradient first; got ", plan.deferred_layers));
  }
  check_layers(plan, session.model().description, path);
  check_plugin(session, plan.experts, Kind::kExpertStrategy, path, "experts");
  check_plugin(session, plan.activations, Kind::kActivationStrategy, path, "activations");
  check_settings(session, plan, path);
  check_strategies(session, plan, path);
  return plan;
}

}  // namespace oom::runtime
