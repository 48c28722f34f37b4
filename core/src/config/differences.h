/// What differs between a configuration and one that was resolved earlier: for runs that go on.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "config/config.h"

namespace oom::config {

struct SettingDifference {
  std::string table, key;
  std::string before, now;  ///< as TOML, or "left out"
};

/// Compares the given tables of `config` with those of `resolved_before`, which resolved_toml wrote; a key it does not have, because it is of an
/// older version, counts with its default. Raises FileError when it is no TOML.
std::vector<SettingDifference> differences(const Config& config, const std::string& resolved_before, std::span<const std::string_view> tables);

}  // namespace oom::config
