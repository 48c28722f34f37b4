#include "observe/run_record.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "config/choices.h"

namespace oom::observe {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kObjects = 12;  // largest objects named for each place

std::vector<size_t> classes_of(const PlaceAccount& account) {
  std::vector<size_t> classes;
  for (size_t c = 0; c < kBufferClasses; ++c) {
    const bool lives = std::any_of(account.live.begin(), account.live.end(), [c](const LiveBytes& live) { return live.classes[c] > 0; });
    if (account.at_peak[c] > 0 || lives) classes.push_back(c);
  }
  return classes;
}

Json bytes_of(const ClassBytes& bytes, const std::vector<size_t>& classes) {
  Json row = Json::array();
  for (const size_t c : classes) row.push_back(bytes[c]);
  return row;
}

// Stages of a node are listed in the order of emission; what counts here is when they run. Equal neighbours say nothing new.
void add_times(Json& place, const PlaceAccount& account, const std::vector<size_t>& classes, const Simulation& simulation) {
  std::vector<const LiveBytes*> order;
  for (const LiveBytes& live : account.live) order.push_back(&live);
  const auto start = [&](const LiveBytes* live) { return simulation.stages.at(static_cast<size_t>(live->stage)).start; };
  std::stable_sort(order.begin(), order.end(), [&](const LiveBytes* a, const LiveBytes* b) { return start(a) < start(b); });
  Json& times = place["times"] = Json::array();
  Json& bytes = place["bytes"] = Json::array();
  const LiveBytes* before = nullptr;
  for (const LiveBytes* live : order) {
    if (before && before->classes == live->classes) continue;
    before = live;
    times.push_back(start(live));
    bytes.push_back(bytes_of(live->classes, classes));
  }
}

Json place_record(const Program& program, const PlaceAccount& account, const Simulation& simulation) {
  const std::vector<size_t> classes = classes_of(account);
  Json place{{"place", place_name(account.place)}, {"peak_bytes", account.peak_bytes}};
  if (account.peak_stage != kNone) place["peak_stage"] = stage_name(program, account.peak_stage);
  Json& names = place["classes"] = Json::array();
  for (const size_t c : classes) names.push_back(buffer_class_name(static_cast<BufferClass>(c)));
  place["at_peak"] = bytes_of(account.at_peak, classes);
  add_times(place, account, classes, simulation);
  Json& objects = place["largest"] = Json::array();
  for (size_t i = 0; i < std::min(kObjects, account.objects.size()); ++i) {
    const MemoryObject& object = account.objects[i];
    objects.push_back({{"name", object.name}, {"class", buffer_class_name(object.buffer_class)}, {"bytes", object.bytes}});
  }
  return place;
}

Json critical_path(const Program& program, const std::vector<CriticalLink>& links) {
  Json path = Json::array();
  for (size_t i = 0; i < links.size();) {
    const Stage& first = program.stages.at(static_cast<size_t>(links[i].stage));
    Json run{{"lane", lane_name(first.lane.lane)}, {"kind", program.kinds.at(static_cast<size_t>(first.kind))}, {"first_layer", first.layer}, {"start", links[i].time.start}};
    int stages = 0, last_layer = first.layer;
    double end = links[i].time.end;
    for (; i < links.size(); ++i, ++stages) {
      const Stage& stage = program.stages.at(static_cast<size_t>(links[i].stage));
      if (stage.kind != first.kind || stage.lane.lane != first.lane.lane) break;
      last_layer = stage.layer;
      end = links[i].time.end;
    }
    run["last_layer"] = last_layer;
    run["stages"] = stages;
    run["end"] = end;
    path.push_back(std::move(run));
  }
  return path;
}

}  // namespace

Json memory_record(const Program& program, const MemoryAccount& account, const Simulation& simulation, const RunBudgets& budgets) {
  Json places = Json::array();
  for (size_t rank = 0; rank < account.gpus.size(); ++rank) {
    Json place = place_record(program, account.gpus[rank], simulation);
    if (rank < budgets.gpu_bytes.size()) place["budget_bytes"] = budgets.gpu_bytes[rank];
    if (rank < budgets.gpu_bytes.size()) place["headroom_bytes"] = budgets.headroom_bytes;
    places.push_back(std::move(place));
  }
  for (size_t node = 0; node < account.nodes.size(); ++node) {
    Json place = place_record(program, account.nodes[node], simulation);
    if (node < budgets.host_bytes.size()) place["budget_bytes"] = budgets.host_bytes[node];
    places.push_back(std::move(place));
  }
  return places;
}

Json prediction_record(const Program& program, const Simulation& simulation) {
  Json record{{"step_seconds", simulation.step_seconds}, {"bound_by", bound_by(simulation)}};
  const auto named = [&](Lane lane, KindId kind) { return Json{{"lane", lane_name(lane)}, {"kind", program.kinds.at(static_cast<size_t>(kind))}}; };
  Json& kinds = record["kinds"] = Json::array();
  for (const KindTime& busy : simulation.busy) {
    kinds.push_back(named(busy.lane, busy.kind));
    kinds.back()["stages"] = busy.stages;
    kinds.back()["seconds"] = busy.seconds;
  }
  Json& waits = record["waits"] = Json::array();
  for (const ExposedWait& wait : simulation.waits) {
    waits.push_back(named(wait.lane, wait.kind));
    waits.back()["seconds"] = wait.seconds;
  }
  Json& resources = record["resources"] = Json::array();
  for (const ResourceUse& use : simulation.resources) resources.push_back({{"name", use.name}, {"share", use.share}});
  record["critical_path"] = critical_path(program, simulation.critical_path);
  return record;
}

Json plan_record(const Plan& plan, const std::string& evidence) {
  return {{"experts", plan.experts},
          {"activations", plan.activations},
          {"device", plan.device == DeviceKind::kCuda ? "cuda" : "cpu"},
          {"ranks", plan.ranks},
          {"numa_nodes", plan.numa_nodes},
          {"deferred_layers", plan.deferred_layers},
          {"sequence_length", plan.workload.sequence_length},
          {"global_batch", plan.workload.global_batch},
          {"compute", plan.workload.compute == ElementType::kFloat32 ? "fp32" : "bf16"},
          {"resident_layers", plan.resident_layers},
          {"resident_ordinary", config::word(plan.resident_ordinary)},
          {"cached_weights", plan.cached_weights},
          {"evidence", evidence}};
}

}  // namespace oom::observe
