#include "optim/bf16.h"

#include <gtest/gtest.h>

#include <cmath>

namespace oom::optim {
namespace {

TEST(Bf16, WidensEveryPatternAndRoundsItBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = float_from_bf16(static_cast<uint16_t>(bits));
    const uint16_t back = bf16_from_float(value);
    if (std::isnan(value))
      EXPECT_EQ(back, bits | 0x40);
    else if ((bits & 0x7f80) == 0)
      EXPECT_EQ(back, bits & 0x8000);  // denormals
    else
      EXPECT_EQ(back, bits);
  }
}

TEST(Bf16, RoundsTiesToEven) {
  EXPECT_EQ(bf16_from_float(std::bit_cast<float>(0x3f808000u)), 0x3f80);
  EXPECT_EQ(bf16_from_float(std::bit_cast<float>(0x3f818000u)), 0x3f82);
  EXPECT_EQ(bf16_from_float(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_EQ(bf16_from_float(std::bit_cast<float>(0x7f7fffffu)), 0x7f80);
}

}  // namespace
}  // namespace oom::optim
