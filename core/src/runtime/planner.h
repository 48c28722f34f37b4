/// From a configuration to a plan that fits: candidates configured by their strategies, accounted, simulated, compared with the budgets.
/// Nothing here runs the model or allocates memory for it.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "oom/accountant.h"
#include "oom/simulator.h"
#include "plan/plan_file.h"
#include "runtime/admission.h"
#include "runtime/plan_search.h"
#include "runtime/session.h"

namespace oom::runtime {

struct PlannedRun {
  Plan plan;
  Program program;                         ///< the training step: what account and simulation speak of
  MemoryAccount account;                   ///< with what a process takes anyhow
  Simulation simulation;
  std::string evidence;                    ///< why this candidate
  std::string bound_by;
  std::vector<Trial> others;               ///< that were tried beside it
  std::vector<int64_t> gpu_budget_bytes;   ///< by rank; empty: none of their own
  int64_t headroom_bytes = 0;              ///< kept free of each of them
  std::string machine, calibration, calibration_checksum;  ///< see plan::PlanPrediction
  std::vector<int64_t> host_budget_bytes;  ///< by NUMA node
};

/// The plan nearest to what was asked for: it fits, or it is the smallest that was tried.
struct NearestPlan {
  std::vector<std::pair<std::string, std::string>> changes;  ///< keys of the configuration and the values to give them, as TOML
  bool fits = false;
  MemoryAccount account;
  std::vector<Shortfall> shortfalls;  ///< when it does not fit either
  double step_seconds = 0;
  std::string describe() const;
};

struct Refusal {
  std::string why;
  NearestPlan nearest;
  Budgets budgets;
};

/// A plan, or why there is none.
struct PlanAnswer {
  std::optional<PlannedRun> run;
  Refusal refusal;
};

/// Plans for a configuration. With engine.plan: that file as it stands; else the selector's choice of the candidates that fit. Throws ConfigError or
/// FileError for what is wrong with the question; an answer that does not fit is no error here.
PlanAnswer find_plan(Session& session, Purpose purpose);
/// The same for a run: throws BudgetError with numbers and the nearest plan. Training also needs disk for its checkpoints.
PlannedRun make_plan(Session& session, Purpose purpose = Purpose::kTrain);

/// What is written beside the plan.
plan::PlanPrediction prediction_of(const PlannedRun& run);

}  // namespace oom::runtime
