#include "runtime/plan_judge.h"

#include <algorithm>
#include <limits>

#include "plan/plan_file.h"

namespace oom::runtime {
namespace {

std::vector<int64_t> peaks_of(const std::vector<PlaceAccount>& places) {
  std::vector<int64_t> peaks;
  for (const PlaceAccount& place : places) peaks.push_back(place.peak_bytes);
  return peaks;
}

int64_t floor_of(const PlaceAccount& place) {
  int64_t bytes = 0;
  for (const BufferClass which : {BufferClass::kFixed, BufferClass::kState, BufferClass::kWorkingWeight, BufferClass::kGradient, BufferClass::kStaging}) bytes += place.persistent[static_cast<size_t>(which)];
  return bytes;
}

}  // namespace

int64_t gpu_spare_bytes(const PlanFigures& figures, const Budgets& budgets) {
  int64_t spare = std::numeric_limits<int64_t>::max();
  for (size_t rank = 0; rank < budgets.gpu_bytes.size(); ++rank) spare = std::min(spare, budgets.gpu_bytes[rank] - budgets.headroom_bytes - figures.gpu_peak_bytes.at(rank));
  return spare;
}

int64_t host_spare_bytes(const PlanFigures& figures, const Budgets& budgets) {
  int64_t spare = std::numeric_limits<int64_t>::max();
  for (size_t node = 0; node < budgets.host_bytes.size(); ++node) spare = std::min(spare, budgets.host_bytes[node] - figures.host_peak_bytes.at(node));
  return spare;
}

int64_t over_bytes(const PlanFigures& figures, const Budgets& budgets) {
  int64_t over = 0;
  for (size_t rank = 0; rank < budgets.gpu_bytes.size(); ++rank) over += std::max<int64_t>(0, figures.gpu_peak_bytes.at(rank) - budgets.gpu_bytes[rank] + budgets.headroom_bytes);
  for (size_t node = 0; node < budgets.host_bytes.size(); ++node) over += std::max<int64_t>(0, figures.host_peak_bytes.at(node) - budgets.host_bytes[node]);
  return over;
}

PlanJudge::~PlanJudge() = default;

AccountedProgram PlanJudge::emit(const Plan& plan) {
  AccountedProgram emitted = emit_plan(session_, plan, ProgramUse::kSketch);
  emitted_stages_ += static_cast<int64_t>(emitted.program.stages.size());
  return emitted;
}

const PlanFigures& PlanJudge::account(const Plan& plan) { return known(plan, /*simulates=*/false); }
const PlanFigures& PlanJudge::simulate(const Plan& plan) { return known(plan, /*simulates=*/true); }

PlanFigures& PlanJudge::known(const Plan& plan, bool simulates) {
  const std::string key = plan::plan_toml(plan);
  const auto found = known_.find(key);
  if (found != known_.end() && (!simulates || found->second.step_seconds)) return found->second;
  PlanFigures& figures = known_[key];
  if (latest_key_ != key) {
    AccountedProgram emitted = emit(plan);
    figures.gpu_peak_bytes = peaks_of(emitted.account.gpus);
    for (const PlaceAccount& gpu : emitted.account.gpus) figures.gpu_floor_bytes.push_back(floor_of(gpu));
    figures.host_peak_bytes = peaks_of(emitted.account.nodes);
    latest_ = std::make_unique<Program>(std::move(emitted.program));
    latest_key_ = key;
  }
  if (simulates) figures.step_seconds = simulate_plan(plan, *latest_, costs(plan.experts)).step_seconds;
  return figures;
}

const CostTable& PlanJudge::costs(const std::string& experts) {
  const auto found = costs_.find(experts);
  return found != costs_.end() ? found->second : costs_.emplace(experts, session_.costs(experts)).first->second;
}

}  // namespace oom::runtime
