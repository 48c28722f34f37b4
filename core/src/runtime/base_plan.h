/// What a configuration says of a plan before any strategy is asked, and plan files that are executed as they stand.
#pragma once

#include "runtime/admission.h"
#include "runtime/session.h"

namespace oom::runtime {

/// Device, ranks, nodes, workload, transfer, state as far as it is stated (auto: streamed, cached); the strategies' names and settings are open.
/// Updates are deferred only as far as they must be.
Plan base_plan(Session& session, const Machine& machine, Purpose purpose);

/// True when the planner may defer updates of as many layers as it likes.
bool may_choose_deferral(const config::Config& config);

/// Loads engine.plan and judges it against this run, whose own plan would be `wanted`. Throws FileError where they differ, or the machines. With
/// engine.allow_plan_mismatch the plan's choices are applied to this run's workload and device instead, and each difference is logged.
Plan load_stated_plan(Session& session, const Plan& wanted, const Machine& machine);

/// Lets the strategies of a plan out of the file `path` judge their settings and take them over. Throws FileError.
void check_strategies(Session& session, Plan& plan, const std::string& path);

}  // namespace oom::runtime
