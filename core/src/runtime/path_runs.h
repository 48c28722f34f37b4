/// Short runs of configured plans for the selector, and the choice that came of them, kept for the next run of the same workload.
#pragma once

#include <string>
#include <vector>

#include "runtime/planner.h"

namespace oom::runtime {

/// Runs candidates of `session`'s configuration on their first layers, each in a session of its own.
class PathRuns final : public ShortRuns {
 public:
  PathRuns(Session& session, const std::vector<Candidate>& candidates) : session_(session), candidates_(candidates) {}
  int layers() const override;
  int unit_layers() const override;
  Result run(size_t candidate, int layers) override;

 private:
  Session& session_;
  const std::vector<Candidate>& candidates_;
};

/// What the configuration of a short run says besides the session's own, so that it works as `plan` does on `layers` of its `all` layers: the same
/// strategy and settings, the same share of resident and retained layers.
std::vector<std::string> short_overrides(const Plan& plan, int layers, int all);

/// Where the plan is kept that was installed for this session's model, workload, budgets, settings and machine.
std::string installed_plan_path(Session& session);

}  // namespace oom::runtime
