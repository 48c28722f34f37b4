// The side of the SDK header that lives in the core library.
#include "oom/plugin.h"

#include <algorithm>
#include <cstring>
#include <exception>

namespace oom {
inline namespace abi_1 {

Plugin::~Plugin() = default;

std::string_view kind_name(Kind kind) {
  switch (kind) {
    case Kind::kModelAdapter: return "model adapter";
    case Kind::kExpertStrategy: return "expert strategy";
    case Kind::kActivationStrategy: return "activation strategy";
    case Kind::kSelector: return "selector";
  }
  return "unknown kind";
}

void report_failure(OomPluginFailure& failure) noexcept {
  const auto write = [&failure](ExitCode code, const char* text) {
    failure.exit_code = static_cast<int32_t>(code);
    if (failure.capacity == 0) return;
    const size_t length = std::min<size_t>(std::strlen(text), failure.capacity - 1);
    std::memcpy(failure.message, text, length);
    failure.message[length] = '\0';
  };
  try {
    throw;
  } catch (const Error& error) {
    write(error.exit_code(), error.what());
  } catch (const std::bad_alloc&) {
    write(ExitCode::kDevice, "out of host memory");
  } catch (const std::exception& error) {
    write(ExitCode::kBug, error.what());
  } catch (...) {
    write(ExitCode::kBug, "threw something that is no std::exception");
  }
}

}  // namespace abi_1
}  // namespace oom
