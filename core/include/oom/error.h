/// Exceptions of the engine, one type for each way a run can end, and the macros that check invariants.
///
/// A message says where, what, the values, and what to do: "configs/a.toml:9:14: ep.routing_chunk: must be greater than 0; got -1".
/// Nothing throws out of a destructor or an extern "C" function.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

#define OOM_API __attribute__((visibility("default")))

namespace oom {
inline namespace abi_1 {

/// Exit status of the program for each kind of end (docs: README, "Exit status").
enum class ExitCode : int {
  kDone = 0,
  kBug = 1,
  kUsage = 2,
  kBudget = 3,
  kFile = 4,
  kDevice = 5,
  kDiverged = 6,
  kInterrupted = 130,
};

/// A defect of this program, and the base of every other error here.
class OOM_API Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, ExitCode code = ExitCode::kBug);
  ~Error() override;
  /// The process's exit status when nothing catches this error.
  ExitCode exit_code() const { return code_; }

 private:
  ExitCode code_;
};

/// The user's mistake: command line or configuration. Raised before anything starts. Exit 2.
class OOM_API ConfigError : public Error {
 public:
  explicit ConfigError(const std::string& message);
  ~ConfigError() override;
};

/// The work does not fit the budgets, or the machine. Exit 3.
class OOM_API BudgetError : public Error {
 public:
  explicit BudgetError(const std::string& message);
  ~BudgetError() override;
};

/// A file is missing, unreadable, damaged or inconsistent: model, data, checkpoint, plan, plugin. Exit 4.
class OOM_API FileError : public Error {
 public:
  explicit FileError(const std::string& message);
  ~FileError() override;
};

/// A device, collective or memory call failed; the message names rank, layer and stage. Exit 5.
class OOM_API DeviceError : public Error {
 public:
  explicit DeviceError(const std::string& message);
  ~DeviceError() override;
};

/// Loss or gradient is no longer finite; the message names step, layer and rank. Exit 6.
class OOM_API DivergedError : public Error {
 public:
  explicit DivergedError(const std::string& message);
  ~DivergedError() override;
};

/// Returns its arguments streamed one after another.
template <typename... Parts>
std::string cat(const Parts&... parts) {
  std::ostringstream out;
  static_cast<void>((out << ... << parts));
  return out.str();
}

/// Raises Error with file, line, the failed expression and `detail`.
[[noreturn]] OOM_API void raise_check_failure(const char* file, int line, const char* expression, const std::string& detail);

}  // namespace abi_1
}  // namespace oom

/// Checks an invariant of this program; further arguments are streamed into the message.
#define OOM_CHECK(condition, ...)                                                                      \
  do {                                                                                                 \
    if (!(condition)) ::oom::raise_check_failure(__FILE__, __LINE__, #condition, ::oom::cat(__VA_ARGS__)); \
  } while (false)

#define OOM_CHECK_OP(op, left, right, ...)                                                                        \
  do {                                                                                                            \
    const auto& oom_left_ = (left);                                                                               \
    const auto& oom_right_ = (right);                                                                             \
    if (!(oom_left_ op oom_right_))                                                                               \
      ::oom::raise_check_failure(__FILE__, __LINE__, #left " " #op " " #right,                                    \
                                 ::oom::cat(oom_left_, " against ", oom_right_, ". ", ::oom::cat(__VA_ARGS__)));  \
  } while (false)

#define OOM_CHECK_EQ(left, right, ...) OOM_CHECK_OP(==, left, right, __VA_ARGS__)
#define OOM_CHECK_LT(left, right, ...) OOM_CHECK_OP(<, left, right, __VA_ARGS__)
#define OOM_CHECK_LE(left, right, ...) OOM_CHECK_OP(<=, left, right, __VA_ARGS__)
#define OOM_CHECK_GT(left, right, ...) OOM_CHECK_OP(>, left, right, __VA_ARGS__)
