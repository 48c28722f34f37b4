#include "base/text.h"

#include <gtest/gtest.h>

namespace oom::base {
namespace {

TEST(Text, FormatsBytesWithThreeFigures) {
  EXPECT_EQ(format_bytes(812), "812 B");
  EXPECT_EQ(format_bytes(3 << 19), "1.50 MiB");
  EXPECT_EQ(format_bytes(int64_t{113} << 30), "113 GiB");
  EXPECT_EQ(format_bytes(1000), "0.98 KiB");
}

TEST(Text, ParsesSizesAndRefusesTheRest) {
  EXPECT_EQ(parse_bytes("64MiB"), 64 << 20);
  EXPECT_EQ(parse_bytes("1.5 gib"), int64_t{3} << 29);
  EXPECT_EQ(parse_bytes("512"), 512);
  EXPECT_EQ(parse_bytes("-1GiB"), std::nullopt);
  EXPECT_EQ(parse_bytes("80 parsecs"), std::nullopt);
  EXPECT_EQ(parse_bytes("1e30GiB"), std::nullopt);
  EXPECT_EQ(parse_bytes(""), std::nullopt);
}

TEST(Text, FindsTheNearestName) {
  const std::vector<std::string> names{"keep_boundaries", "keep_attention", "sub_batch"};
  EXPECT_EQ(nearest_name("keep_boundary", names), "keep_boundaries");
  EXPECT_EQ(nearest_name("zzz", names), std::nullopt);
}

TEST(Text, GroupsDigits) {
  EXPECT_EQ(group_digits(30532122624), "30,532,122,624");
  EXPECT_EQ(group_digits(-1234), "-1,234");
  EXPECT_EQ(group_digits(999), "999");
}

}  // namespace
}  // namespace oom::base
