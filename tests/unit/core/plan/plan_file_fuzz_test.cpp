// Whatever the bytes of a plan file are, the outcome is a valid plan or a FileError.
#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "plan/plan_file.h"
#include "sample_plan.h"

namespace oom::plan {
namespace {

using Random = std::mt19937_64;

std::string mutated(std::string text, Random& random) {
  static constexpr const char* kPieces[] = {"-1",  "4294967297", "9223372036854775807", "nan", "[]", "{}", "[[1]]", "\"\"", "true", "1e400", "=", "\n[settings]\n", "\n[settings.local]\n",
                                            "\n[workload]\n", "\"", "'''", "\0", "\xff", "#", "inf", "{a = 1}", "[1, \"a\"]"};
  const int changes = 1 + static_cast<int>(random() % 3);
  for (int i = 0; i < changes; ++i) {
    const size_t at = random() % (text.size() + 1);
    switch (random() % 5) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(random());
        break;
      case 1: text.erase(at, random() % 40); break;
      case 2: text.insert(at, kPieces[random() % std::size(kPieces)]); break;
      case 3: {  // another value for a whole key, so that what is behind the parser is reached
        const size_t equals = text.find("= ", at);
        if (equals == std::string::npos) break;
        const size_t end = text.find('\n', equals);
        text.replace(equals + 2, end == std::string::npos ? std::string::npos : end - equals - 2, kPieces[random() % std::size(kPieces)]);
        break;
      }
      default: text.insert(at, text.substr(random() % text.size(), random() % 80)); break;
    }
    if (text.empty()) text = "x";
  }
  return text;
}

TEST(PlanFileFuzz, MutatedPlansAreReadOrRefused) {
  const std::string valid = plan_toml(testing::sample_plan(), {.step_seconds = 1, .gpu_peak_bytes = {1, 2}, .host_peak_bytes = {3, 4}});
  Random random(20260101);
  int read = 0, refused = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(1200);
  for (int i = 0; i < 20000 && std::chrono::steady_clock::now() < end; ++i) {
    const std::string text = mutated(valid, random);
    try {
      const Plan plan = parse_plan(text, "plan.toml");
      ++read;
      // What was accepted is written and read again without loss.
      const std::string written = plan_toml(plan);
      ASSERT_EQ(plan_toml(parse_plan(written, "again")), written) << text;
    } catch (const FileError&) {
      ++refused;
    }
  }
  EXPECT_GT(read, 0);
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace oom::plan
