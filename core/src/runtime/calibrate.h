/// Short reference runs of a few layers, and the costs that they show: `oom calibrate`, and what plans are made with.
#pragma once

#include <string>

#include "plan/calibration_file.h"
#include "runtime/session.h"

namespace oom::runtime {

/// Layers of a short run: the model's shortest repeating pattern as often as makes four layers or more; the whole model when it has fewer than twice
/// that.
int repeating_unit(const ModelDescription& model);

/// Measures the machine, then runs one unit of the configuration's model under each usable expert strategy: at its batch and sequence length, at half of
/// either, and as the whole model's plan by what that showed would have it. Fits the kinds of stages. `known` keeps its other profiles. Prints what it does to the log.
plan::Calibration calibrate(const std::string& config_path, const std::vector<std::string>& overrides, plan::Calibration known);

/// Where this machine's calibration is kept: $XDG_CACHE_HOME/oom or ~/.cache/oom, calibration-<hash of the machine>.toml.
std::string cached_calibration_path(const std::string& machine);

/// The fingerprint of the session's machine, and the versions that a calibration depends on.
std::string machine_of(const Session& session);
std::string calibrated_versions();

/// Costs to plan with, and where they come from: engine.calibration, else this machine's cached one, else analytic. A file of another machine or
/// other versions is refused (FileError) when it was named and this is the machine that is planned for; kinds of another geometry are left out.
class PlanningCosts {
 public:
  explicit PlanningCosts(Session& session);
  /// This calibration, wherever it comes from.
  PlanningCosts(Session& session, plan::Calibration calibration);
  CostTable of(const std::string& experts) const;
  /// "analytic", or the file with what of it is used.
  std::string origin(const std::string& experts) const;
  /// Of what the file says, in hexadecimal digits; empty: analytic.
  const std::string& checksum() const { return checksum_; }

 private:
  Session& session_;
  std::string path_;  // empty: analytic
  std::string checksum_;
  plan::Calibration calibration_;
};

}  // namespace oom::runtime
