#include "runtime/state_search.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "runtime/residency.h"

namespace oom::runtime {
namespace {

constexpr int kCorrections = 3;  // of an estimated number of layers

// The least that any GPU has left of its budget.
int64_t spare_bytes(const PlanCandidate& candidate, const Budgets& budgets) {
  int64_t spare = std::numeric_limits<int64_t>::max();
  for (size_t rank = 0; rank < budgets.gpu_bytes.size(); ++rank) {
    spare = std::min(spare, budgets.gpu_bytes[rank] - budgets.headroom_bytes - candidate.account.gpus.at(rank).peak_bytes);
  }
  return spare;
}

class Search {
 public:
  Search(Session& session, const Plan& plan, const Budgets& budgets, std::vector<std::string>& tried)
      : session_(session), plan_(plan), budgets_(budgets), tried_(tried), routed_(routed_layers(session.model().description)) {
    const config::State& state = session.config().state();
    // On the CPU device every place is host memory: residency would save nothing.
    const bool searches = plan.device == DeviceKind::kCuda;
    open_layers_ = searches && state.resident.is_auto() && !routed_.empty();
    open_ordinary_ = searches && !state.resident_ordinary;
    open_weights_ = !state.weights;
  }

  PlanCandidate run() {
    try_ordinary(plan_.resident_ordinary);
    if (open_ordinary_ && spare_bytes(*smallest_on_gpu_, budgets_) > 0) try_ordinary(true);
    const bool streams = !best_->plan.resident_ordinary || best_->plan.resident_layers.size() < routed_.size();
    // Cached weights fit, or nothing does: the other way may still be faster.
    if (open_weights_ && best_->plan.cached_weights && streams) {
      Plan converting = best_->plan;
      converting.cached_weights = false;
      offer(judge(std::move(converting)));
    }
    return std::move(*best_);
  }

 private:
  // With ordinary parameters resident or not: no expert shard on the GPUs, and as many as fit.
  void try_ordinary(bool resident) {
    Plan plan = plan_;
    plan.resident_ordinary = resident;
    PlanCandidate none = judge(plan);
    const int64_t spare = spare_bytes(none, budgets_);
    if (!smallest_on_gpu_) smallest_on_gpu_.emplace(none);
    offer(std::move(none));
    if (open_layers_ && spare > 0) try_most_layers(plan, spare);
  }

  void try_most_layers(const Plan& none, int64_t spare) {
    const int layers = static_cast<int>(routed_.size());
    const PlanCandidate all = judge(resident(none, layers));
    const int64_t spare_of_all = spare_bytes(all, budgets_);
    if (spare_of_all >= 0) {
      offer(PlanCandidate(all));
      return;
    }
    // Bytes a layer are nearly the same: estimate, then correct.
    int count = static_cast<int>(spare * layers / (spare - spare_of_all));
    for (int i = 0; i < kCorrections && count > 0; ++i, --count) {
      PlanCandidate some = judge(resident(none, count));
      if (spare_bytes(some, budgets_) < 0) continue;
      offer(std::move(some));
      return;
    }
  }

  Plan resident(Plan plan, int count) const {
    plan.resident_layers.clear();
    for (const int position : place_resident(count, static_cast<int>(routed_.size()), session_.config().state().placement)) plan.resident_layers.push_back(routed_[position]);
    return plan;
  }

  // With cached weights, unless the host's budget does not hold them.
  PlanCandidate judge(Plan plan) const {
    PlanCandidate candidate = judge_plan(session_, plan, budgets_);
    const bool host_is_short = std::any_of(candidate.shortfalls.begin(), candidate.shortfalls.end(), [](const Shortfall& shortfall) { return shortfall.place.kind == Place::Kind::kNuma; });
    if (!host_is_short || !open_weights_ || !plan.cached_weights) return candidate;
    plan.cached_weights = false;
    PlanCandidate converting = judge_plan(session_, std::move(plan), budgets_);
    return converting.over_bytes() < candidate.over_bytes() ? std::move(converting) : std::move(candidate);
  }

  void offer(PlanCandidate candidate) {
    if (candidate.fits()) tried_.push_back(cat(describe_state(candidate.plan), ": ", candidate.simulation.step_seconds, " s"));
    if (!best_ || is_better(candidate)) best_.emplace(std::move(candidate));
  }

  bool is_better(const PlanCandidate& candidate) const {
    if (!candidate.fits() || !best_->fits()) return candidate.fits() || (!best_->fits() && candidate.over_bytes() < best_->over_bytes());
    const double seconds = candidate.simulation.step_seconds, best = best_->simulation.step_seconds;
    if (seconds < best * (1 - kTie)) return true;
    return seconds <= best * (1 + kTie) && spare_bytes(candidate, budgets_) > spare_bytes(*best_, budgets_);
  }

  Session& session_;
  const Plan& plan_;
  const Budgets& budgets_;
  std::vector<std::string>& tried_;
  std::vector<int> routed_;
  bool open_layers_ = false, open_ordinary_ = false, open_weights_ = false;
  std::optional<PlanCandidate> best_, smallest_on_gpu_;
};

}  // namespace

PlanCandidate place_state(Session& session, const Plan& plan, const Budgets& budgets, std::vector<std::string>& tried) { return Search(session, plan, budgets, tried).run(); }

std::string describe_state(const Plan& plan) {
  return cat(plan.resident_layers.size(), " layers resident, ordinary ", plan.resident_ordinary ? "resident" : "streamed", ", weights ", plan.cached_weights ? "cached" : "converted");
}

}  // namespace oom::runtime
