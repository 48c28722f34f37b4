#include "base/bfloat16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace oom::base {
namespace {

TEST(Bfloat16, RoundsToNearestTiesToEven) {
  const auto rounded = [](uint32_t bits) { return to_bfloat16(std::bit_cast<float>(bits)); };
  EXPECT_EQ(rounded(0x3F800000), 0x3F80);
  EXPECT_EQ(rounded(0x3F807FFF), 0x3F80);
  EXPECT_EQ(rounded(0x3F808000), 0x3F80) << "tie, even below";
  EXPECT_EQ(rounded(0x3F808001), 0x3F81);
  EXPECT_EQ(rounded(0x3F818000), 0x3F82) << "tie, even above";
  EXPECT_EQ(rounded(0xBF818000), 0xBF82);
  EXPECT_EQ(rounded(0x00008000), 0x0000) << "subnormals too";
  EXPECT_EQ(rounded(0x00018000), 0x0002);
  EXPECT_EQ(rounded(0x7F7FFFFF), 0x7F80) << "the largest FP32 becomes infinity";
  EXPECT_EQ(rounded(0x80000000), 0x8000);
  EXPECT_EQ(rounded(0x7F800001), 0x7FC0) << "a NaN stays one";
}

TEST(Bfloat16, EveryValueSurvivesTheWayToFp32AndBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = from_bfloat16(static_cast<uint16_t>(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(to_bfloat16(value), bits);
  }
}

TEST(Float16, EveryValueEqualsItsDefinition) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const int exponent = static_cast<int>(bits >> 10 & 0x1F);
    const double fraction = bits & 0x3FF;
    const double sign = bits & 0x8000 ? -1 : 1;
    const float value = from_float16(static_cast<uint16_t>(bits));
    if (exponent == 0x1F) {
      ASSERT_EQ(std::isnan(value), fraction != 0);
      if (fraction == 0) {
        ASSERT_EQ(value, sign * std::numeric_limits<float>::infinity());
      }
    } else {
      const double expected = sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
      ASSERT_EQ(value, expected) << bits;
      ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0);
    }
  }
}

}  // namespace
}  // namespace oom::base
