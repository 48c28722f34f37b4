/// The smallest plugin: it has a table of settings, reads it, and writes a line to the engine's log.
#pragma once

#include <oom/host_services.h>
#include <oom/plugin.h>
#include <oom/settings.h>

#include <cstdint>

namespace example {

class Example : public oom::Plugin {
 public:
  /// `services` stays valid until this object is destroyed. What may fail throws an oom::Error of the fitting kind.
  explicit Example(const oom::HostServices& services);
  ~Example() override;

  /// The table [example] of the config.
  static const oom::SettingsSchema& settings_schema();

 private:
  const oom::HostServices& services_;
  int64_t patience_steps_ = 0;
};

}  // namespace example
