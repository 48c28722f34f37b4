/// What the engine hands to a plugin: everything a plugin may use of its surroundings. There are no global look-ups.
#pragma once

#include <cstdint>
#include <string_view>

#include "oom/log.h"

namespace oom {
inline namespace abi_1 {

class SettingsTable;

enum class DeviceKind : uint32_t { kCpu = 0, kCuda = 1 };

/// Given to a plugin's constructor, and valid until the plugin is destroyed: keeping the reference is fine. Borrowed, read-only,
/// usable from every thread. Fields are only appended; `struct_size` says which of them the engine knows.
struct HostServices {
  uint64_t struct_size = sizeof(HostServices);
  /// Writes one line to the engine's log (topic first: "ep: 4 layers resident"). Thread-safe, throws nothing. Never null.
  void (*log)(LogLevel level, std::string_view line) = nullptr;
  /// The plugin's own table of the config, read and checked against its schema. Null when the plugin has no settings, and while it is only
  /// asked about itself, before a config was read.
  const SettingsTable* settings = nullptr;
  /// Number of ranks of the run; every rank is a thread of this process. At least 1.
  int32_t ranks = 1;
  DeviceKind device = DeviceKind::kCpu;
  /// Folder of the run, for files a plugin leaves to the user; empty when nothing runs (oom plan, oom doctor).
  std::string_view run_folder;
  /// Seed of the run, for a plugin that makes random choices: same seed, same choices.
  uint64_t seed = 0;
};

}  // namespace abi_1
}  // namespace oom
