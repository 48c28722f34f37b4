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
/// Emits a plan's step, to be judged or as a sketch. Throws Error when what is judged does not hold; of its sketches a search leaves that to the plan it ends with.
AccountedProgram emit_plan(Session& session, const Plan& plan, ProgramUse use);
/// What strategies look for plans with. Borrows the session.
PlanningContext planning_context(Session& session, const std::string& experts, const Budgets& budgets);
/// Predicts how a plan's step runs.
Simulation simulate_plan(const Plan& plan, const Program& program, const CostTable& costs);
/// Judges a configured plan: emitted, verified, accounted and simulated.
PlanCandidate judge_plan(Session& session, Plan plan, const Budgets& budgets);

}  // namespace oom::runtime
