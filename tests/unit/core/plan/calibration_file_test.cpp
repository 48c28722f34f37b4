#include "plan/calibration_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace oom::plan {
namespace {

using ::testing::HasSubstr;

Calibration sample() {
  Calibration calibration{.machine = "2 x NVIDIA H200", .versions = "LibTorch 2.11.0", .device = DeviceKind::kCuda, .rates = {}, .profiles = {}};
  calibration.rates.h2d_bytes = 54.321e9;
  calibration.rates.clock = {{.share = 0.5, .seconds = 0.875}, {.share = 1, .seconds = 1}};
  calibration.put({.geometry = "a", .experts = "ep", .compute = ElementType::kBfloat16, .kinds = {{"mixer_forward", {.fixed = 1e-5, .per_token = 2e-8}}}, .analytic_factor = 2.75});
  calibration.put({.geometry = "a", .experts = "local", .compute = ElementType::kBfloat16, .kinds = {}});
  return calibration;
}

std::string failure_of(const std::string& text) {
  try {
    parse_calibration(text, "c.toml");
  } catch (const FileError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(CalibrationFile, ReadsBackWhatWasWritten) {
  const std::string text = calibration_toml(sample());
  const Calibration read = parse_calibration(text, "c.toml");
  EXPECT_EQ(calibration_toml(read), text);
  EXPECT_EQ(read.machine, "2 x NVIDIA H200");
  EXPECT_EQ(read.rates.h2d_bytes, 54.321e9);
  ASSERT_EQ(read.rates.clock.size(), 2u);
  EXPECT_EQ(read.rates.clock[0].share, 0.5);
  EXPECT_EQ(read.rates.clock[0].seconds, 0.875);
  ASSERT_NE(read.find("a", "ep", ElementType::kBfloat16), nullptr);
  EXPECT_EQ(read.find("a", "ep", ElementType::kBfloat16)->kinds.at("mixer_forward").per_token, 2e-8);
  EXPECT_EQ(read.find("a", "ep", ElementType::kBfloat16)->analytic_factor, 2.75);
  // A file that does not say.
  EXPECT_EQ(parse_calibration(replaced(text, "analytic_factor = 2.75\n", ""), "c.toml").find("a", "ep", ElementType::kBfloat16)->analytic_factor, 1);
  EXPECT_EQ(read.find("a", "ep", ElementType::kFloat32), nullptr);
  EXPECT_EQ(read.find("b", "ep", ElementType::kBfloat16), nullptr);
}

TEST(CalibrationFile, AProfileTakesThePlaceOfItsPredecessor) {
  Calibration calibration = sample();
  calibration.put({.geometry = "a", .experts = "ep", .compute = ElementType::kBfloat16, .kinds = {{"mixer_forward", {.fixed = 3}}}});
  EXPECT_EQ(calibration.profiles.size(), 2u);
  EXPECT_EQ(calibration.find("a", "ep", ElementType::kBfloat16)->kinds.at("mixer_forward").fixed, 3);
}

TEST(CalibrationFile, NamesWhatIsWrong) {
  const std::string text = calibration_toml(sample());
  EXPECT_THAT(failure_of(replaced(text, "version = 1", "version = 9")), HasSubstr("c.toml:5:11: version: this program reads version 1"));
  EXPECT_THAT(failure_of(replaced(text, "h2d_bytes = ", "h2d_bytes = -")), HasSubstr("rates.h2d_bytes: must be from"));
  EXPECT_THAT(failure_of(replaced(text, "analytic_factor = 2.75", "analytic_factor = 0")), HasSubstr("profile.analytic_factor: must be from"));
  EXPECT_THAT(failure_of(replaced(text, "clock_shares = [0.5", "clock_shares = [1.5")), HasSubstr("rates.clock_shares: must rise from above 0"));
  EXPECT_THAT(failure_of(replaced(text, "clock_shares = [0.5, 1.0]\n", "")), HasSubstr("clock_shares"));
  EXPECT_THAT(failure_of(replaced(text, "clock_seconds = [0.875, ", "clock_seconds = [")), HasSubstr("rates.clock_seconds: must be as many as rates.clock_shares, 2"));
  EXPECT_THAT(failure_of(replaced(text, "per_token = ", "per_token = -")), HasSubstr("profile.kinds.mixer_forward.per_token: must be from 0"));
  EXPECT_THAT(failure_of(replaced(text, "device = \"cuda\"", "device = \"tpu\"")), HasSubstr("device: must be cuda or cpu; got \"tpu\""));
  EXPECT_THAT(failure_of(replaced(text, "machine", "mashine")), HasSubstr("mashine: unknown key"));
}

// Whatever the bytes are: a calibration or a FileError.
TEST(CalibrationFile, DamagedFilesAreRefusedOrRead) {
  const std::string text = calibration_toml(sample());
  unsigned state = 1;
  for (int round = 0; round < 3000; ++round) {
    std::string damaged = text;
    for (int change = 0; change < 3; ++change) {
      state = state * 1664525u + 1013904223u;
      damaged[state % damaged.size()] = static_cast<char>(state >> 24);
    }
    try {
      parse_calibration(damaged, "c.toml");
    } catch (const FileError&) {
    }
  }
}

}  // namespace
}  // namespace oom::plan
