/// What the engine tells a strategy that looks for plans: what there is, what things cost, and what a plan would take.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "oom/accountant.h"
#include "oom/cost_table.h"
#include "oom/plan.h"
#include "oom/stage.h"

namespace oom {
inline namespace abi_1 {

/// A plan's training step, without the actions that run it, and what it takes.
struct AccountedProgram {
  Program program;
  MemoryAccount account;  ///< with what a process takes anyhow
};

/// Borrowed for the length of the call that it is given to, which is on the planning thread.
struct PlanningContext {
  /// Rates in units a second, seconds of kinds of stages: those that the engine's simulator judges plans with, calibrated or analytic.
  CostTable costs;
  /// Bytes that a plan may take of each rank's GPU, headroom taken off. Empty: device memory counts in the host's budget (CPU device).
  std::vector<int64_t> gpu_budget_bytes;
  /// Bytes by NUMA node.
  std::vector<int64_t> host_budget_bytes;
  /// Emits the training step of a configured plan, whether it fits or not, and accounts it. Throws what strategies throw while they emit, so not from
  /// inside an emission. Milliseconds for a small program, up to a second for a deep model in small slices.
  std::function<AccountedProgram(const Plan&)> emit;
};

}  // namespace abi_1
}  // namespace oom
