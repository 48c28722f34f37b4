#include "runtime/nearest_plan.h"

#include <algorithm>
#include <functional>
#include <optional>

#include "base/text.h"
#include "runtime/plan_judge.h"
#include "runtime/residency.h"

namespace oom::runtime {
namespace {

constexpr int64_t kShortestSequence = 128;
constexpr int kResidencySteps = 8;  // numbers of resident layers to try

/// A change of one key; `apply` does it to a plan, and says false where there is nothing to gain.
struct Change {
  std::string key;
  std::string value;
  std::function<void(Plan&)> apply;
};

// Fewer layers' experts on the GPUs, then none of the ordinary parameters.
void add_residency(const config::Config& config, const ModelDescription& model, const Plan& plan, std::vector<Change>& changes) {
  const std::vector<int> routed = routed_layers(model);
  const int resident = static_cast<int>(plan.resident_layers.size());
  const int step = std::max(1, resident / kResidencySteps);
  for (int count = resident; count > 0;) {
    count = std::max(0, count - step);
    std::vector<int> layers;
    for (const int position : place_resident(count, static_cast<int>(routed.size()), config.state().placement)) layers.push_back(routed[position]);
    changes.push_back({"state.resident", cat(count), [layers](Plan& changed) { changed.resident_layers = layers; }});
  }
  if (plan.resident_ordinary != OrdinaryResidency::kNone) {
    changes.push_back({"state.resident_ordinary", "\"none\"", [](Plan& changed) { changed.resident_ordinary = OrdinaryResidency::kNone; }});
  }
}

std::vector<Change> changes_for(const config::Config& config, const ModelDescription& model, const Plan& plan) {
  std::vector<Change> changes;
  if (plan.deferred_layers > 0 && !plan.workload.clips) changes.push_back({"train.updates", "\"overlapped\"", [](Plan& changed) { changed.deferred_layers = 0; }});
  if (plan.cached_weights) changes.push_back({"state.weights", "\"convert\"", [](Plan& changed) { changed.cached_weights = false; }});
  if (plan.resident_cached_weights && (plan.resident_ordinary != OrdinaryResidency::kNone || !plan.resident_layers.empty())) {
    changes.push_back({"state.resident_weights", "\"convert\"", [](Plan& changed) { changed.resident_cached_weights = false; }});
  }
  if (plan.transfer.gradient_slots > 1 || plan.transfer.ordinary_gradient_slots > 1) {
    changes.push_back({"transfer.gradient_slots", "1", [](Plan& changed) { changed.transfer.gradient_slots = changed.transfer.ordinary_gradient_slots = 1; }});
  }
  if (plan.transfer.windows > 1) changes.push_back({"transfer.windows", "1", [](Plan& changed) { changed.transfer.windows = 1; }});
  if (chooses_retained(plan) && !plan.retained_attention.empty()) changes.push_back({cat(plan.experts, ".retain_attention"), "\"none\"", [](Plan& changed) { changed.retained_attention.clear(); }});
  if (chooses_retained(plan) && !plan.retained_feed_forward.empty()) changes.push_back({cat(plan.experts, ".retain"), "\"none\"", [](Plan& changed) { changed.retained_feed_forward.clear(); }});
  add_residency(config, model, plan, changes);
  for (int64_t batch = plan.workload.global_batch / 2; batch >= plan.ranks && batch % plan.ranks == 0; batch /= 2) {
    changes.push_back({"train.global_batch", cat(batch), [batch](Plan& changed) { changed.workload.global_batch = batch; }});
  }
  for (int64_t length = plan.workload.sequence_length / 2; length >= kShortestSequence; length /= 2) {
    changes.push_back({"data.sequence_length", cat(length), [length](Plan& changed) { changed.workload.sequence_length = length; }});
  }
  if (plan.workload.gradients == ElementType::kFloat32 && plan.workload.compute == ElementType::kBfloat16) {
    changes.push_back({"precision.gradients", "\"bf16\"", [](Plan& changed) { changed.workload.gradients = ElementType::kBfloat16; }});
  }
  if (plan.workload.compute == ElementType::kFloat32) {
    changes.push_back({"precision.compute", "\"bf16\"", [follows = !config.precision().gradients](Plan& changed) {
                         changed.workload.compute = ElementType::kBfloat16;
                         if (follows) changed.workload.gradients = ElementType::kBfloat16;
                       }});
  }
  return changes;
}

/// A plan with some changes made, and what it lacks.
struct Changed {
  Plan plan;
  int64_t over_bytes = 0;
  bool fits() const { return over_bytes == 0; }
};

class Search {
 public:
  Search(Session& session, const Plan& plan, const Budgets& budgets) : session_(session), plan_(plan), budgets_(budgets) {}

  /// Nothing when a strategy's own settings do not allow the changes.
  std::optional<Changed> judge(const std::vector<Change>& changes) {
    Plan plan = plan_;
    const auto apply = [&] {
      for (const Change& change : changes) change.apply(plan);
    };
    apply();
    try {
      configure_strategies(session_, plan);
      apply();  // what a strategy's own table says otherwise has been written into the plan again
    } catch (const ConfigError&) {
      return std::nullopt;
    }
    Changed changed = account(std::move(plan));
    if (changed.fits()) return changed;
    // Of the strategies' alternatives the last take the least memory.
    const ModelDescription& model = session_.model().description;
    Plan smallest = changed.plan;
    if (std::vector<Plan> others = session_.experts(smallest.experts).alternatives(model, smallest, /*last_resort=*/true); !others.empty()) smallest = std::move(others.back());
    if (std::vector<Plan> others = session_.activations(smallest.activations).alternatives(model, smallest); !others.empty()) smallest = std::move(others.back());
    Changed other = account(std::move(smallest));
    return other.over_bytes < changed.over_bytes ? std::move(other) : std::move(changed);
  }

 private:
  Changed account(Plan plan) {
    const int64_t over = over_bytes(session_.judge().account(plan), budgets_);
    return {std::move(plan), over};
  }

  Session& session_;
  const Plan& plan_;
  const Budgets& budgets_;
};

// Replaces an earlier change of the same key.
std::vector<Change> with(std::vector<Change> changes, const Change& next) {
  if (!changes.empty() && changes.back().key == next.key) changes.pop_back();
  changes.push_back(next);
  return changes;
}

}  // namespace

NearestPlan find_nearest(Session& session, const PlanCandidate& refused, const Budgets& budgets) {
  Search search(session, refused.plan, budgets);
  std::vector<Change> made;
  Changed best{refused.plan, refused.over_bytes()};
  for (const Change& change : changes_for(session.config(), session.model().description, refused.plan)) {
    const std::vector<Change> more = with(made, change);
    std::optional<Changed> changed = search.judge(more);
    if (!changed || changed->over_bytes >= best.over_bytes) continue;  // no gain
    made = more;
    best = std::move(*changed);
    if (best.fits()) break;
  }
  for (size_t i = 0; best.fits() && made.size() > 1 && i < made.size();) {
    std::vector<Change> fewer = made;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
    std::optional<Changed> changed = search.judge(fewer);
    if (!changed || !changed->fits()) {
      ++i;
      continue;
    }
    made = std::move(fewer);
    best = std::move(*changed);
  }
  PlanCandidate smallest = judge_plan(session, std::move(best.plan), budgets);
  NearestPlan nearest{.changes = {}, .fits = smallest.fits(), .account = std::move(smallest.account), .shortfalls = std::move(smallest.shortfalls),
                      .step_seconds = smallest.simulation.step_seconds};
  for (const Change& change : made) nearest.changes.emplace_back(change.key, change.value);
  return nearest;
}

std::string NearestPlan::describe() const {
  std::vector<std::string> settings;
  for (const auto& [key, value] : changes) settings.push_back(cat("--set ", key, "=", value));
  std::string text = fits ? cat("nearest plan that fits: ", base::join(settings, " "))
                          : cat("no plan fits; the smallest found", settings.empty() ? std::string() : cat(" (", base::join(settings, " "), ")"), " still needs:");
  if (!fits) return cat(text, "\n", runtime::describe(shortfalls));
  for (const auto* places : {&account.gpus, &account.nodes}) {
    for (const PlaceAccount& place : *places) text += cat("\n  ", place_name(place.place), " needs ", base::format_bytes(place.peak_bytes));
  }
  return text;
}

}  // namespace oom::runtime
