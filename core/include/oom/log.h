/// The one log of the process. Lines go to stderr; results of commands go to stdout and never through here.
/// Thread-safe. Levels: error = the run ends; warn = result or speed differs from what was asked; info = once a phase; debug = per step.
/// A line begins with its topic: "memory: 113.4 GiB registered in 6.1 s".
#pragma once

#include <string_view>

#include "oom/error.h"

namespace oom {
inline namespace abi_1 {

enum class LogLevel : int { kDebug = 0, kInfo = 1, kWarn = 2, kError = 3 };

OOM_API void log_line(LogLevel level, std::string_view line);
/// Sets the lowest level that is printed; the environment variable OOM_LOG (debug, info, warn, error) is read once at start.
OOM_API void set_log_level(LogLevel level);
OOM_API bool log_enabled(LogLevel level);

template <typename... Parts>
void log_debug(const Parts&... parts) {
  if (log_enabled(LogLevel::kDebug)) log_line(LogLevel::kDebug, cat(parts...));
}
template <typename... Parts>
void log_info(const Parts&... parts) {
  if (log_enabled(LogLevel::kInfo)) log_line(LogLevel::kInfo, cat(parts...));
}
template <typename... Parts>
void log_warn(const Parts&... parts) {
  if (log_enabled(LogLevel::kWarn)) log_line(LogLevel::kWarn, cat(parts...));
}
template <typename... Parts>
void log_error(const Parts&... parts) {
  log_line(LogLevel::kError, cat(parts...));
}

}  // namespace abi_1
}  // namespace oom
