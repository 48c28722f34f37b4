#include "plugin/plugin_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

// Stand-ins of the same names: the guard tells LibTorch's errors by type name.
namespace c10 {
struct OutOfMemoryError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
}  // namespace c10

namespace oom::plugin {
namespace {

template <typename Thrown, typename Expected>
std::string rethrown(const Thrown& thrown, ExitCode code, int64_t step = 12) {
  try {
    guarded("ep", "emit_forward", step, [&]() -> int { throw thrown; });
  } catch (const Expected& error) {
    EXPECT_EQ(error.exit_code(), code);
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Guard, GivesBackWhatTheCallReturns) {
  int value = 3;
  int& reference = guarded("ep", "estimate", kNoStep, [&]() -> int& { return value; });
  EXPECT_EQ(&reference, &value);
  guarded("ep", "prepare", kNoStep, [&] { value = 4; });
  EXPECT_EQ(value, 4);
}

TEST(Guard, KeepsTypeAndExitCodeOfOurErrors) {
  EXPECT_EQ((rethrown<ConfigError, ConfigError>(ConfigError("run.toml:3:1: x"), ExitCode::kUsage)), "run.toml:3:1: x");
  EXPECT_EQ((rethrown<BudgetError, BudgetError>(BudgetError("x"), ExitCode::kBudget, kNoStep)), "plugin 'ep', emit_forward: x");
  EXPECT_EQ((rethrown<FileError, FileError>(FileError("config.json: x"), ExitCode::kFile)), "config.json: x");
  rethrown<DeviceError, DeviceError>(DeviceError("x"), ExitCode::kDevice);
  rethrown<DivergedError, DivergedError>(DivergedError("x"), ExitCode::kDiverged);
  rethrown<Error, PluginError>(Error("x", ExitCode::kInterrupted), ExitCode::kInterrupted);
}

TEST(Guard, NamesTheInnerOfTwoPlugins) {
  const auto inner = [] { guarded("ep", "emit_forward", kNoStep, [] { throw std::out_of_range("key"); }); };
  EXPECT_THAT([&] { guarded("offload", "emit_training", kNoStep, inner); }, ::testing::ThrowsMessage<PluginError>("plugin 'ep', emit_forward: std::out_of_range: key"));
}

TEST(Guard, TurnsTheRestIntoPluginErrors) {
  EXPECT_EQ((rethrown<std::out_of_range, PluginError>(std::out_of_range("key"), ExitCode::kBug)),
            "plugin 'ep', emit_forward, step 12: std::out_of_range: key");
  EXPECT_EQ((rethrown<int, PluginError>(7, ExitCode::kBug)), "plugin 'ep', emit_forward, step 12: threw a int, which is no std::exception");
}

TEST(Guard, KnowsWhenADeviceOrMemoryFailed) {
  rethrown<std::bad_alloc, DeviceError>(std::bad_alloc(), ExitCode::kDevice);
  EXPECT_EQ((rethrown<c10::OutOfMemoryError, DeviceError>(c10::OutOfMemoryError("CUDA out of memory\nException raised from malloc at x.cpp:1"),
                                                          ExitCode::kDevice)),
            "plugin 'ep', emit_forward, step 12: CUDA out of memory");
}

}  // namespace
}  // namespace oom::plugin
