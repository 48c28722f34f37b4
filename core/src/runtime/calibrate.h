/// Short reference runs of a few layers, and the costs that they show: `oom calibrate`, and what plans are made with.
#pragma once

#include <string>

#include "plan/calibration_file.h"
#include "runtime/session.h"

namespace oom::runtime {

/// Layers of a short run: the model's shortest repeating pattern as often as makes four layers or more; the whole model when it has fewer than twice
/// that.
int repeating_unit(const ModelDescription& model);

/// How much is run for a profile.
enum class CalibrationExtent {
  kFull,
  kOneRun,  ///< one unit as configured, at the configuration's batch and sequence length: what a search goes over where nothing is calibrated
};

/// Measures the machine, then runs one unit of the configuration's model under each usable expert strategy of which `known` has no profile that serves: at its
/// batch and sequence length, at half of either, and as the whole model's plan by what that showed would have it. Fits the kinds of stages. What `known` has of
/// this machine and these versions stays; rates are measured again with a model's first profile. Prints what it does to the log.
/// kFull throws what the last strategy was refused with where none can run.
plan::Calibration calibrate(const std::string& config_path, const std::vector<std::string>& overrides, plan::Calibration known, CalibrationExtent extent = CalibrationExtent::kFull);

/// The expert strategies that the session's configuration may plan for of which `known` has no profile: none of its geometry and compute type, or it was measured
/// on another machine, device or with other versions.
std::vector<std::string> uncalibrated(Session& session, const plan::Calibration& known);

/// Where this machine's calibration is kept: $XDG_CACHE_HOME/oom or ~/.cache/oom, calibration-<hash of the machine>.toml.
std::string cached_calibration_path(const std::string& machine);

/// The fingerprint of the session's machine, and the versions that a calibration depends on.
std::string machine_of(const Session& session);
std::string calibrated_versions();

/// Removes the profiles of the session's model under the strategies that its configuration may plan for.
void forget_profiles(Session& session, plan::Calibration& known);

/// Costs to plan with, and where they come from: engine.calibration, else this machine's cached one, else analytic. A file of another machine or
/// other versions is refused (FileError) when it was named and this is the machine that is planned for; kinds of another geometry are left out.
inline constexpr const char* kAnalyticCosts = "analytic";
class PlanningCosts {
 public:
  explicit PlanningCosts(Session& session);
  /// This calibration instead of a file's, whose checksum stays: what is remembered for the same question is found by that.
  PlanningCosts(Session& session, plan::Calibration calibration, std::string origin, std::string checksum);
  CostTable of(const std::string& experts) const;
  /// kAnalyticCosts, or the file with what of it is used.
  std::string origin(const std::string& experts) const;
  /// Of what the file says, in hexadecimal digits; empty: there is none.
  const std::string& checksum() const { return checksum_; }
  /// Empty: analytic.
  const plan::Calibration& calibration() const { return calibration_; }

 private:
  Session& session_;
  std::string path_;  // empty: analytic
  std::string checksum_;
  plan::Calibration calibration_;
};

}  // namespace oom::runtime
