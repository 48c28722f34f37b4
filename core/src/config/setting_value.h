/// From TOML values to checked setting values, and back.
#pragma once

#include <optional>
#include <string>

#include "config/faults.h"
#include "config/toml_values.h"
#include "oom/settings.h"

namespace oom::config {

/// Returns what `setting` takes, for messages and the reference: `"auto" or an integer (tokens, at least 1)`.
std::string accepted_text(const Setting& setting);

/// A value, or what is wrong: "must be ...; got ...; cure: ...".
struct SettingReading {
  SettingValue value;
  std::string fault;
};
SettingReading read_setting(const Setting& setting, const TomlValue& value);

/// Returns the value as TOML that `read_setting` takes back to the same value; sizes in the largest unit that is exact.
/// Nothing for std::monostate.
std::optional<TomlValue> to_toml(const Setting& setting, const SettingValue& value);

/// Reads the members of `source` into `table`, which holds the defaults of `schema`. Faulty and unknown keys go to `faults`.
void read_settings(const SettingsSchema& schema, const TomlValue& source, SettingsTable& table, Faults& faults);
/// Reads one key from elsewhere than the file; `place` begins the messages.
void read_one_setting(const SettingsSchema& schema, std::string_view key, const TomlValue& value, const std::string& place,
                      SettingsTable& table, Faults& faults);
/// Reports the required keys that were not given.
void report_missing(const SettingsSchema& schema, const SettingsTable& table, Faults& faults);

}  // namespace oom::config
