/// run.json: what a run was started with, for people, tools and `oom report`: plan and why, budgets, memory over a step, predicted times,
/// machine and versions. Written anew whenever the run starts or resumes. Bytes, seconds; times count from the end of the step before.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "oom/accountant.h"
#include "oom/plan.h"
#include "oom/simulator.h"

namespace oom::observe {

inline constexpr int kRunRecordVersion = 1;

struct RunBudgets {
  std::vector<int64_t> gpu_bytes;   ///< by rank; empty: the host's budget bounds it
  int64_t headroom_bytes = 0;       ///< kept free of each GPU budget
  std::vector<int64_t> host_bytes;  ///< by NUMA node
};

/// The classes that ever hold bytes at a place, their bytes at the peak, and, where they change during a step, their bytes from each time on.
nlohmann::ordered_json memory_record(const Program& program, const MemoryAccount& account, const Simulation& simulation, const RunBudgets& budgets);
/// Step time, busy kinds, exposed waits, use of resources, and the critical path with equal neighbours drawn together.
nlohmann::ordered_json prediction_record(const Program& program, const Simulation& simulation);
/// Strategies and sizes of a plan, and why it was chosen.
nlohmann::ordered_json plan_record(const Plan& plan, const std::string& evidence);

}  // namespace oom::observe
