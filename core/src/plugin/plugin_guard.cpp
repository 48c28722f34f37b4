#include "plugin/plugin_guard.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <typeinfo>

namespace oom::plugin {
namespace {

std::string type_name(const std::type_info& type) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> readable(abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), &std::free);
  return status == 0 ? readable.get() : type.name();
}

/// LibTorch's errors are told by name: their header costs seconds in every translation unit, and this file is no tensor code.
bool device_failed(const std::string& type) { return type == "c10::OutOfMemoryError" || type == "c10::AcceleratorError"; }

/// LibTorch appends its C++ stack to the text.
std::string first_part(std::string text) {
  const size_t stack = text.find("\nException raised from ");
  if (stack != std::string::npos) text.resize(stack);
  return text;
}

}  // namespace

PluginError::PluginError(const std::string& message, ExitCode code) : Error(message, code) {}
PluginError::~PluginError() = default;

void rethrow_from_plugin(std::string_view plugin, std::string_view method, int64_t step) {
  const std::string where = cat("plugin '", plugin, "', ", method, step == kNoStep ? std::string() : cat(", step ", step), ": ");
  try {
    throw;
  } catch (const ConfigError&) {
    throw;
  } catch (const FileError&) {
    throw;
  } catch (const PluginError&) {
    throw;
  } catch (const BudgetError& error) {
    throw BudgetError(where + error.what());
  } catch (const DeviceError& error) {
    throw DeviceError(where + error.what());
  } catch (const DivergedError& error) {
    throw DivergedError(where + error.what());
  } catch (const Error& error) {
    throw PluginError(where + error.what(), error.exit_code());
  } catch (const std::bad_alloc& error) {
    throw DeviceError(where + "out of host memory (" + error.what() + ")");
  } catch (const std::exception& error) {
    const std::string type = type_name(typeid(error));
    if (device_failed(type)) throw DeviceError(where + first_part(error.what()));
    throw PluginError(where + type + ": " + first_part(error.what()), ExitCode::kBug);
  } catch (...) {
    const std::type_info* type = abi::__cxa_current_exception_type();
    throw PluginError(where + "threw a " + (type != nullptr ? type_name(*type) : std::string("foreign exception")) + ", which is no std::exception",
                      ExitCode::kBug);
  }
}

}  // namespace oom::plugin
