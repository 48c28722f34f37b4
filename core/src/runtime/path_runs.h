/// Short runs of configured plans for the selector, and the choice that came of them, kept for the next run of the same workload.
#pragma once

#include <string>
#include <vector>

#include "runtime/planner.h"

namespace oom::runtime {

/// A plan for fewer layers of a model that works as the plan for all does, in a file that exists as long as this object.
class ShortPlan {
 public:
  /// `plan` is for the model of `whole`. Layers that are resident, retained and so on lie in the depth of the short model as those of `plan` do in the whole one's; lists in
  /// settings are cut to the first layers.
  ShortPlan(Session& whole, const Plan& plan, int layers, const LayerMix& mix);
  ShortPlan(const ShortPlan&) = delete;
  ~ShortPlan();
  /// What makes a session of the whole model's configuration one of this plan.
  const std::vector<std::string>& overrides() const { return overrides_; }

 private:
  std::string path_;
  std::vector<std::string> overrides_;
};

/// `count` layers of `layers`, spread as `chosen` are over `all`; ascending.
std::vector<int> spread_as(const std::vector<int>& chosen, int count, int layers, int all);

/// Runs candidates of `session`'s configuration on their first layers, each in a session of its own.
class PathRuns final : public ShortRuns {
 public:
  PathRuns(Session& session, const std::vector<Candidate>& candidates) : session_(session), candidates_(candidates) {}
  int layers() const override;
  int unit_layers() const override;
  Result run(size_t candidate, int layers, const LayerMix& mix) override;

 private:
  Session& session_;
  const std::vector<Candidate>& candidates_;
};

/// What the configuration of a short run says besides the session's own, so that it works much as `plan` does on `layers` of its `all` layers: the same
/// strategy and settings, nearly the same share of resident and retained layers. The rest is planned anew.
std::vector<std::string> short_overrides(const Plan& plan, int layers, int all);

/// Where the plan is kept that was installed for this session's model, workload, budgets, settings and machine.
std::string installed_plan_path(Session& session);

}  // namespace oom::runtime
