#include "runtime/run_log.h"

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "hardware/machine_fingerprint.h"
#include "observe/run_record.h"
#include "runtime/library_versions.h"
#include "runtime/plan_explanation.h"

namespace oom::runtime {
namespace {

using Json = nlohmann::ordered_json;

Json machine_record(const PlannedRun& planned) {
  const hardware::GpuList gpus = planned.plan.device == DeviceKind::kCuda ? hardware::list_gpus() : hardware::GpuList{};
  const hardware::Topology topology = hardware::Topology::detect();
  Json record{{"name", hardware::machine_fingerprint(gpus, topology)}};
  Json& devices = record["gpus"] = Json::array();
  for (const hardware::GpuInfo& gpu : gpus.gpus) devices.push_back({{"name", gpu.name}, {"memory_bytes", gpu.memory_bytes}});
  Json& nodes = record["numa_nodes"] = Json::array();
  for (const hardware::NumaNode& node : topology.nodes) nodes.push_back({{"cores", node.cores.size()}, {"memory_bytes", node.memory_bytes}});
  return record;
}

Json versions_record() {
  Json record = Json::object();
  for (const LibraryVersion& library : library_versions()) {
    const std::string& version = library.found.empty() ? library.built : library.found;
    if (!version.empty()) record[library.name] = version;
  }
  return record;
}

Json model_record(const ModelDescription& model) {
  return {{"family", model.family}, {"parameters", model.total_parameters()}, {"layers", model.layers.size()}, {"experts", model.routed.experts}, {"top_k", model.routed.top_k}};
}

// What planning knows, and no more of it: a plan that was stated or installed has neither.
void add_alternatives(Json& plan, const PlannedRun& planned) {
  Json& lost = plan["runners_up"] = Json::array();
  for (const RunnerUp& each : runners_up(planned)) {
    lost.push_back({{"difference", each.difference}, {"why", each.why}});
    if (each.figures.step_seconds) lost.back()["step_seconds"] = *each.figures.step_seconds;
    lost.back()["gpu_peak_bytes"] = each.figures.gpu_peak_bytes;
    lost.back()["host_peak_bytes"] = each.figures.host_peak_bytes;
  }
  Json& gains = plan["budget_gains"] = Json::array();
  for (const BudgetGain& each : known_gains(planned)) gains.push_back({{"budget", each.budget}, {"difference", each.difference}});
}

Json run_record(Session& session, const PlannedRun& planned, int64_t done) {
  const observe::RunBudgets budgets{planned.gpu_budget_bytes, planned.headroom_bytes, planned.host_budget_bytes};
  Json record{{"version", observe::kRunRecordVersion}, {"time", observe::unix_seconds()}, {"after_step", done}, {"steps", session.config().train().steps}};
  record["model"] = model_record(session.model().description);
  record["model"]["path"] = session.config().model().path;
  record["plan"] = observe::plan_record(planned.plan, planned.evidence);
  record["plan"]["calibration"] = planned.calibration;
  if (!planned.others.empty()) add_alternatives(record["plan"], planned);
  record["memory"] = observe::memory_record(planned.program, planned.account, planned.simulation, budgets);
  record["predicted"] = observe::prediction_record(planned.program, planned.simulation);
  record["machine"] = machine_record(planned);
  record["versions"] = versions_record();
  return record;
}

}  // namespace

const std::vector<std::string>& run_files() {
  static const std::vector<std::string> files{"metrics.jsonl", "expert_load.jsonl", "events.jsonl", "tensorboard", "run.json", "config.toml",
                                              "plan.toml",     "trace.json",        "stage_kinds.json", "stage_kinds.txt", "report.html", "checkpoints"};
  return files;
}

RunLog::RunLog(std::filesystem::path folder, Session& session, const PlannedRun& planned, int64_t done)
    : folder_(std::move(folder)), planned_(planned), last_step_(done), metrics_(folder_ / "metrics.jsonl"), expert_load_(folder_ / "expert_load.jsonl"), journal_(folder_ / "events.jsonl") {
  const config::Config& config = session.config();
  metrics_.keep_until(done);
  if (config.output().expert_load_every > 0) expert_load_.keep_until(done);
  if (config.output().tensorboard) events_.emplace(folder_ / "tensorboard", metrics_.path());
  base::replace_text_file(folder_ / "run.json", run_record(session, planned, done).dump() + "\n");
  journal_.started(done, config.train().steps);
}

void RunLog::step(const observe::StepMetrics& metrics, const StepResult& result) {
  last_step_ = metrics.step;
  const Json line = observe::to_json(metrics);
  metrics_.append(line);
  if (events_) events_->append(line);
  if (!result.expert_load.empty()) expert_load_.append({{"step", metrics.step}, {"tokens", result.expert_load}});
}

void RunLog::stage_kinds(const Program& program, int64_t step, const std::vector<StageTime>& stages, double step_seconds) {
  const program::MeasuredStep measured{step, stages};
  Json record{{"step", step}, {"seconds", step_seconds}};
  Json& kinds = record["kinds"] = Json::array();
  for (const program::KindComparison& kind : program::compare_kinds(program, planned_.simulation, measured)) {
    kinds.push_back({{"lane", lane_name(kind.lane)}, {"kind", program.kinds[kind.kind]}, {"stages", kind.stages}, {"predicted_seconds", kind.predicted_seconds}, {"seconds", kind.measured_seconds}});
  }
  base::replace_text_file(folder_ / "stage_kinds.json", record.dump() + "\n");
  base::replace_text_file(folder_ / "stage_kinds.txt", program::describe(program, planned_.simulation, measured, step_seconds));
}

void RunLog::trace(const Program& program, int64_t step, const std::vector<StageTime>& stages, double step_seconds) {
  stage_kinds(program, step, stages, step_seconds);
  traced_.push_back({step, stages});
  base::replace_text_file(folder_ / "trace.json", program::chrome_trace(program, &planned_.simulation, traced_));
}

void RunLog::saved(int64_t step, const std::filesystem::path& checkpoint, double seconds) { journal_.saved(step, checkpoint.filename().string(), seconds); }
void RunLog::ended(const std::string& status) { journal_.ended(last_step_, status); }

void RunLog::failed(const std::exception& error) noexcept {
  try {
    const bool diverged = dynamic_cast<const DivergedError*>(&error) != nullptr;
    journal_.ended(last_step_, diverged ? "diverged" : "failed", error.what());
  } catch (const std::exception&) {
  }
}

}  // namespace oom::runtime
