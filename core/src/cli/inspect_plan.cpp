#include "cli/inspection.h"
#include "oom/error.h"
#include "plan/plan_file.h"

namespace oom::cli {

Inspection inspect_plan(const std::filesystem::path& file) {
  plan::PlanPrediction prediction;
  const Plan plan = plan::load_plan(file.string(), &prediction);
  const std::string toml = plan::plan_toml(plan, prediction);
  const Workload& workload = plan.workload;
  const char* device = plan.device == DeviceKind::kCuda ? "cuda" : "cpu";
  Inspection found;
  found.json = {{"kind", "plan"}, {"path", file.string()}, {"experts", plan.experts}, {"activations", plan.activations}, {"device", device}, {"ranks", plan.ranks},
                {"model", workload.model}, {"sequence_length", workload.sequence_length}, {"global_batch", workload.global_batch}, {"toml", toml}};
  found.text = cat("plan        ", file.string(), ", valid\n", "for         ", workload.model, "; ", workload.global_batch, " sequences of ", workload.sequence_length,
                   " tokens a step\n", "runs on     ", plan.ranks, plan.ranks == 1 ? " rank, " : " ranks, ", device, "\n\n", toml);
  return found;
}

}  // namespace oom::cli
