#include "../../../../plugins/offload/split/cuts.h"

#include <gtest/gtest.h>

namespace oom::offload {
namespace {

std::string text(const std::vector<Slice>& groups) {
  std::string all;
  for (const Slice& group : groups) all += cat(group.begin, "-", group.end, " ");
  return all;
}

TEST(HeadGroups, LieWithinAKeyHeadOrCoverWholeOnes) {
  EXPECT_EQ(text(head_groups(8, 4, 0)), "0-8 ");
  EXPECT_EQ(text(head_groups(8, 4, 1)), "0-1 1-2 2-3 3-4 4-5 5-6 6-7 7-8 ");
  EXPECT_EQ(text(head_groups(8, 4, 3)), "0-3 3-4 4-7 7-8 ");
  EXPECT_EQ(text(head_groups(8, 4, 4)), "0-4 4-8 ");
  EXPECT_EQ(text(head_groups(8, 4, 7)), "0-4 4-8 ");
  EXPECT_EQ(text(head_groups(8, 1, 3)), "0-3 3-6 6-8 ");
  EXPECT_EQ(text(head_groups(8, 4, 9)), "0-8 ");
}

TEST(Batches, TakeWholeSequences) {
  const auto pieces = batches({2, 5}, 2);
  ASSERT_EQ(pieces.size(), 3u);
  EXPECT_EQ(pieces[2].first, 6);
  EXPECT_EQ(pieces[2].count, 1);
}

}  // namespace
}  // namespace oom::offload
