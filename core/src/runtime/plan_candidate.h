/// One plan judged: its program emitted, accounted and simulated without a device.
#pragma once

#include "oom/cost_table.h"
#include "oom/simulator.h"
#include "runtime/admission.h"
#include "runtime/session.h"

namespace oom::runtime {

struct PlanCandidate {
  Plan plan;
  Program program;
  MemoryAccount account;
  Simulation simulation;
  std::vector<Shortfall> shortfalls;
  bool fits() const { return shortfalls.empty(); }
  int64_t over_bytes() const;
};

/// Lets the plan's strategies resolve their settings. Throws what they throw.
void configure_strategies(Session& session, Plan& plan);
/// Judges a configured plan.
PlanCandidate judge_plan(Session& session, Plan plan, const Budgets& budgets);
/// Of a candidate that does not fit and the activation strategy's alternatives to it: the fastest that fits, else the smallest.
PlanCandidate relieved(Session& session, PlanCandidate candidate, const Budgets& budgets);

}  // namespace oom::runtime
