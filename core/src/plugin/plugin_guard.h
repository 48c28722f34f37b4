/// The one way in which the core calls a plugin: whatever is thrown comes out as an error that names plugin, method and step.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "oom/error.h"

namespace oom::plugin {

/// Step of calls that belong to none (planning, preparation).
inline constexpr int64_t kNoStep = -1;

/// A plugin threw something that is no error of ours; a defect, exit 1, unless it says a device or memory failed (exit 5).
class PluginError : public Error {
 public:
  PluginError(const std::string& message, ExitCode code);
  ~PluginError() override;
};

/// Raises the exception being handled again with "plugin 'ep', emit_forward, step 12: " before its text. ConfigError and FileError, whose
/// texts begin with the place of the user's fault, and what a guard has named already stay as they are. The other errors of oom/error.h keep
/// type and exit code, further descendants of oom::Error their exit code. std::bad_alloc and LibTorch's out-of-memory and accelerator errors
/// become DeviceError; everything else becomes PluginError. To be called from a catch block.
[[noreturn]] void rethrow_from_plugin(std::string_view plugin, std::string_view method, int64_t step);

/// Returns fn(), a call into `plugin`. Costs nothing when nothing is thrown.
template <typename Function>
decltype(auto) guarded(std::string_view plugin, std::string_view method, int64_t step, Function&& fn) {
  try {
    return fn();
  } catch (...) {
    rethrow_from_plugin(plugin, method, step);
  }
}

}  // namespace oom::plugin
