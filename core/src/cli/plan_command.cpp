#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/text.h"
#include "cli/command_line.h"
#include "config/toml_values.h"
#include "runtime/planner.h"
#include "runtime/plan_explanation.h"

namespace oom::cli {
namespace {

using base::format_bytes;
using config::TomlValue;
using runtime::NearestPlan;
using runtime::PlanAnswer;
using runtime::PlannedRun;
using Json = nlohmann::ordered_json;

Json to_json(const TomlValue& value) {
  switch (value.kind()) {
    case TomlValue::Kind::kTable: {
      Json object = Json::object();
      for (const TomlValue::Member& member : value.as_table()) object[member.key] = to_json(member.value);
      return object;
    }
    case TomlValue::Kind::kArray: {
      Json array = Json::array();
      for (const TomlValue& element : value.as_array()) array.push_back(to_json(element));
      return array;
    }
    case TomlValue::Kind::kText: return value.as_text();
    case TomlValue::Kind::kInteger: return value.as_integer();
    case TomlValue::Kind::kNumber: return value.as_number();
    case TomlValue::Kind::kBool: return value.as_bool();
  }
  return nullptr;
}

// What bounds a rank's device memory: its own budget, or on the CPU device that of the host node it comes out of.
int64_t gpu_budget(const std::vector<int64_t>& gpu, const std::vector<int64_t>& host, const Program& program, size_t rank) {
  return gpu.empty() ? host.at(program.node_of_rank.at(rank)) : gpu.at(rank);
}

Json place_json(const PlaceAccount& account, int64_t budget) {
  Json place;
  if (account.place.kind == Place::Kind::kNuma) place["numa_node"] = account.place.index;
  place["budget_bytes"] = budget;
  place["peak_bytes"] = account.peak_bytes;
  Json& classes = place["classes"];
  for (int c = 0; c < kBufferClasses; ++c) classes[buffer_class_name(static_cast<BufferClass>(c))] = account.at_peak[c];
  return place;
}

Json run_json(const PlannedRun& run, int64_t parameters) {
  Json json{{"fits", true}, {"experts", run.plan.experts}, {"predicted_step_seconds", run.simulation.step_seconds}, {"parameters", parameters}};
  json["gpu"] = Json::array();
  json["host"] = Json::array();
  for (size_t rank = 0; rank < run.account.gpus.size(); ++rank) {
    json["gpu"].push_back(place_json(run.account.gpus[rank], gpu_budget(run.gpu_budget_bytes, run.host_budget_bytes, run.program, rank)));
  }
  for (size_t node = 0; node < run.account.nodes.size(); ++node) json["host"].push_back(place_json(run.account.nodes[node], run.host_budget_bytes.at(node)));
  json["bound_by"] = run.bound_by;
  json["waits"] = Json::array();
  for (const ExposedWait& wait : run.simulation.waits) json["waits"].push_back({{"lane", lane_name(wait.lane)}, {"stage", run.program.kinds[static_cast<size_t>(wait.kind)]}, {"seconds", wait.seconds}});
  json["others"] = Json::array();
  for (const runtime::RunnerUp& lost : runners_up(run)) {
    json["others"].push_back({{"difference", lost.difference}, {"why", lost.why}, {"gpu_peak_bytes", lost.figures.gpu_peak_bytes}, {"host_peak_bytes", lost.figures.host_peak_bytes}});
    if (lost.figures.step_seconds) json["others"].back()["predicted_step_seconds"] = *lost.figures.step_seconds;
  }
  json["plan"] = to_json(config::parse_toml(plan::plan_toml(run.plan, prediction_of(run)), "plan"));
  return json;
}

Json nearest_json(const NearestPlan& nearest) {
  Json json{{"fits", nearest.fits}};
  Json& changes = json["changes"] = Json::object();
  for (const auto& [key, value] : nearest.changes) changes[key] = to_json(config::parse_toml(cat("value = ", value), "change").get("value"));
  json["predicted_step_seconds"] = nearest.step_seconds;
  json["gpu_peak_bytes"] = Json::array();
  json["host_peak_bytes"] = Json::array();
  for (const PlaceAccount& gpu : nearest.account.gpus) json["gpu_peak_bytes"].push_back(gpu.peak_bytes);
  for (const PlaceAccount& node : nearest.account.nodes) json["host_peak_bytes"].push_back(node.peak_bytes);
  return json;
}

std::string place_line(const PlaceAccount& account, const std::string& budget) {
  char line[160];
  std::snprintf(line, sizeof line, "  %-8s %10s of %10s ", place_name(account.place).c_str(), format_bytes(account.peak_bytes).c_str(), budget.c_str());
  std::string text = line;
  const char* separator = " ";
  for (int c = 0; c < kBufferClasses; ++c) {
    if (account.at_peak[c] == 0) continue;
    text += cat(separator, buffer_class_name(static_cast<BufferClass>(c)), " ", format_bytes(account.at_peak[c]));
    separator = ", ";
  }
  return text + "\n";
}

std::string summary(const PlannedRun& run) {
  const Workload& workload = run.plan.workload;
  std::string text = cat(workload.model, ", ", run.plan.ranks, " ranks on ", run.plan.device == DeviceKind::kCuda ? "cuda" : "cpu", ", ", workload.global_batch, " sequences of ",
                         workload.sequence_length, " tokens a step\n", "experts ", run.plan.experts, ", activations ", run.plan.activations, ", updates of ", run.plan.deferred_layers, " layers deferred\n",
                         "state: ", runtime::describe_state(run.plan), "\n");
  for (size_t rank = 0; rank < run.account.gpus.size(); ++rank) {
    text += place_line(run.account.gpus[rank], run.gpu_budget_bytes.empty() ? "the host's" : format_bytes(run.gpu_budget_bytes[rank]));
  }
  for (size_t node = 0; node < run.account.nodes.size(); ++node) text += place_line(run.account.nodes[node], format_bytes(run.host_budget_bytes.at(node)));
  char line[200];
  const double tokens = static_cast<double>(workload.global_batch * workload.sequence_length);
  std::snprintf(line, sizeof line, "predicted step %.4g s, %.4g tokens/s, bound by %s\n", run.simulation.step_seconds, tokens / run.simulation.step_seconds, run.bound_by.c_str());
  return cat(text, line, "chosen: ", run.evidence, "\n");
}

}  // namespace

int run_plan(const CommandLine& line) {
  runtime::Session session(line.path, line.overrides);
  const PlanAnswer answer = find_plan(session, runtime::Purpose::kPlanOnly);
  if (!answer.run) {
    if (!line.has("json")) throw BudgetError(cat(answer.refusal.why, "\n", answer.refusal.nearest.describe()));
    std::cout << Json{{"fits", false}, {"why", answer.refusal.why}, {"nearest", nearest_json(answer.refusal.nearest)}}.dump(2) << "\n";
    return static_cast<int>(ExitCode::kBudget);
  }
  const PlannedRun& run = *answer.run;
  if (const std::optional<std::string> out = line.option("out")) base::overwrite_text_file(*out, plan::plan_toml(run.plan, prediction_of(run)));
  if (line.has("json")) {
    Json json = run_json(run, session.model().description.total_parameters());
    if (line.has("explain")) {
      json["more_memory"] = Json::array();
      for (const runtime::BudgetGain& gain : budget_gains(session, run)) json["more_memory"].push_back({{"budget", gain.budget}, {"predicted_step_seconds", gain.step_seconds}, {"difference", gain.difference}});
    }
    std::cout << json.dump(2) << "\n";
    return 0;
  }
  std::cout << summary(run);
  if (line.has("explain")) std::cout << "\nmemory\n" << describe(run.program, run.account) << "\ntime\n" << describe(run.program, run.simulation) << "\n" << explain(session, run);
  return 0;
}

}  // namespace oom::cli
