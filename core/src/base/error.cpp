#include "oom/error.h"

namespace oom {
inline namespace abi_1 {

Error::Error(const std::string& message, ExitCode code) : std::runtime_error(message), code_(code) {}
Error::~Error() = default;
ConfigError::ConfigError(const std::string& message) : Error(message, ExitCode::kUsage) {}
ConfigError::~ConfigError() = default;
BudgetError::BudgetError(const std::string& message) : Error(message, ExitCode::kBudget) {}
BudgetError::~BudgetError() = default;
FileError::FileError(const std::string& message) : Error(message, ExitCode::kFile) {}
FileError::~FileError() = default;
DeviceError::DeviceError(const std::string& message) : Error(message, ExitCode::kDevice) {}
DeviceError::~DeviceError() = default;
DivergedError::DivergedError(const std::string& message) : Error(message, ExitCode::kDiverged) {}
DivergedError::~DivergedError() = default;

void raise_check_failure(const char* file, int line, const char* expression, const std::string& detail) {
  throw Error(cat(file, ":", line, ": check failed: ", expression, detail.empty() ? "" : ": ", detail));
}

}  // namespace abi_1
}  // namespace oom
