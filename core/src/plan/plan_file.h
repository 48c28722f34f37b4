/// Plans as TOML files: written by `oom plan --out` and into every run folder, edited by people, validated on load.
#pragma once

#include <string>

#include "oom/plan.h"

namespace oom::plan {

inline constexpr int kPlanVersion = 1;

/// What planning knew and predicted, kept beside the plan for people and for comparison with other machines and after a run.
struct PlanPrediction {
  double step_seconds = 0;
  std::vector<int64_t> gpu_peak_bytes;   ///< by rank
  std::vector<int64_t> host_peak_bytes;  ///< by NUMA node
  std::string machine;                   ///< hardware::machine_fingerprint of the machine planned for; empty: none in particular
  std::string calibration;               ///< where the costs came from: "analytic" or a file; empty: not known
  std::string calibration_checksum;      ///< of what that file says, in hexadecimal digits; empty: analytic, or not known
};

std::string plan_toml(const Plan& plan, const PlanPrediction& prediction = {});
/// Parses and validates. Throws FileError with file:line:column, key, value and cure. `prediction`, when given, receives what the file says was
/// predicted; zeros where it says nothing.
Plan parse_plan(const std::string& text, const std::string& name, PlanPrediction* prediction = nullptr);
Plan load_plan(const std::string& path, PlanPrediction* prediction = nullptr);

/// Says each field in which `plan` was made for another model, workload, device or number of ranks than `wanted`: "ranks: the plan has 2, this run 4".
std::vector<std::string> plan_differences(const Plan& plan, const Plan& wanted);
/// Throws FileError listing the differences, if there are any.
void refuse_differences(const std::vector<std::string>& differences, const std::string& path);
inline void check_plan_matches(const Plan& plan, const Plan& wanted, const std::string& path) { refuse_differences(plan_differences(plan, wanted), path); }

}  // namespace oom::plan
