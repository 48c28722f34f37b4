/// Plans as TOML files: written by `oom plan --out` and into every run folder, edited by people, validated on load.
#pragma once

#include <string>

#include "oom/plan.h"

namespace oom::plan {

inline constexpr int kPlanVersion = 1;

/// What planning predicted, kept beside the plan for people and for comparison after a run.
struct PlanPrediction {
  double step_seconds = 0;
  std::vector<int64_t> gpu_peak_bytes;   ///< by rank
  std::vector<int64_t> host_peak_bytes;  ///< by NUMA node
};

std::string plan_toml(const Plan& plan, const PlanPrediction& prediction = {});
/// Parses and validates. Throws FileError with file:line:column, key, value and cure. `prediction`, when given, receives what the file says was
/// predicted; zeros where it says nothing.
Plan parse_plan(const std::string& text, const std::string& name, PlanPrediction* prediction = nullptr);
Plan load_plan(const std::string& path, PlanPrediction* prediction = nullptr);

/// Throws FileError listing every field in which `plan` was made for another model, workload, device or number of ranks than `wanted`.
void check_plan_matches(const Plan& plan, const Plan& wanted, const std::string& path);

}  // namespace oom::plan
