/// What `oom calibrate` measured on a machine: rates of its shared resources, and for each model geometry what kinds of stages cost. A versioned TOML
/// file; reading treats it as untrusted input.
#pragma once

#include <string>
#include <vector>

#include "oom/cost_table.h"
#include "oom/plan.h"

namespace oom::plan {

inline constexpr int kCalibrationVersion = 1;

/// Costs of the stages that one expert strategy emits for one geometry in one compute type; the number of layers does not matter.
struct CalibrationProfile {
  std::string geometry;  ///< runtime/geometry.h
  std::string experts;
  ElementType compute = ElementType::kBfloat16;
  std::map<std::string, KindCost> kinds;
  double analytic_factor = 1;  ///< CostTable's, of kinds that are not here
};

struct Calibration {
  std::string machine;   ///< hardware::machine_fingerprint
  std::string versions;  ///< of the libraries that did the work
  DeviceKind device = DeviceKind::kCpu;
  CostTable rates;       ///< without kinds
  std::vector<CalibrationProfile> profiles;

  const CalibrationProfile* find(const std::string& geometry, const std::string& experts, ElementType compute) const;
  /// Adds the profile, in the place of one for the same.
  void put(CalibrationProfile profile);
};

std::string calibration_toml(const Calibration& calibration);
/// Throws FileError naming file:line:column, key and value.
Calibration load_calibration(const std::string& path);
Calibration parse_calibration(const std::string& text, const std::string& name);

}  // namespace oom::plan
