/// Plans judged by figures alone: what a search compares. A plan is emitted once however often it is asked about; what it takes and how long it runs does
/// not depend on budgets, so searches under several budgets share the answers.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/plan_candidate.h"

namespace oom::runtime {

struct PlanFigures {
  std::vector<int64_t> gpu_peak_bytes;   ///< by rank
  std::vector<int64_t> host_peak_bytes;  ///< by NUMA node
  std::vector<int64_t> gpu_floor_bytes;  ///< by rank: what is there all the time whatever is done with activations: state, weights, gradients and their ways
  std::optional<double> step_seconds;    ///< none: not simulated
};

/// The least that any GPU has left of its budget, headroom taken off; negative when one has too little. The largest number when only host memory bounds it.
int64_t gpu_spare_bytes(const PlanFigures& figures, const Budgets& budgets);
int64_t host_spare_bytes(const PlanFigures& figures, const Budgets& budgets);
/// Sum over all places of what they lack.
int64_t over_bytes(const PlanFigures& figures, const Budgets& budgets);

class PlanJudge {
 public:
  explicit PlanJudge(Session& session) : session_(session) {}
  PlanJudge(const PlanJudge&) = delete;
  ~PlanJudge();

  /// What a configured plan takes. Figures stay valid as long as the judge.
  const PlanFigures& account(const Plan& plan);
  /// The same with the time of its steps.
  const PlanFigures& simulate(const Plan& plan);
  /// Emits a plan for others to read.
  AccountedProgram emit(const Plan& plan);
  /// Stages of all programs so far: the work that planning was.
  int64_t emitted_stages() const { return emitted_stages_; }

 private:
  PlanFigures& known(const Plan& plan, bool simulates);
  const CostTable& costs(const std::string& experts);

  Session& session_;
  std::map<std::string, PlanFigures> known_;  // by the plan as a file
  std::map<std::string, CostTable> costs_;    // by expert strategy
  std::string latest_key_;                    // the plan whose program is at hand
  std::unique_ptr<Program> latest_;
  int64_t emitted_stages_ = 0;
};

}  // namespace oom::runtime
