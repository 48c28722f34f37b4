/// A selector with a rule that needs no measurement: of the candidates that fit and are not predicted much slower than the fastest, the one that
/// leaves the most host memory free.
///
/// What a selector does: it is given the plan that each expert strategy configured, with what accounting and simulation say of it, and returns
/// the index of the one to install.
#pragma once

#include <oom/host_services.h>
#include <oom/selector.h>
#include <oom/settings.h>

#include <string>
#include <vector>

namespace least_memory {

class LeastMemory final : public oom::Selector {
 public:
  /// `services` stays valid until this object is destroyed. What may fail throws an oom::Error of the fitting kind.
  explicit LeastMemory(const oom::HostServices& services);
  /// The table [least_memory] of the config: the engine reads it, reports every mistake with its place, and hands the values in through `services`.
  static const oom::SettingsSchema& settings_schema();

  size_t select(const std::vector<oom::Candidate>& candidates, oom::ShortRuns* runs, std::string& evidence) const override;

 private:
  const oom::HostServices& services_;
  double slower_percent_ = 0;
};

}  // namespace least_memory
