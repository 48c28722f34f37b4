#include "optim/state_blocks.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "oom/error.h"

namespace oom::optim {
namespace {

TEST(StateBlocks, TakesTwelveBytesAParameterInWholeBlocks) {
  EXPECT_EQ(state_floats(4096), 3 * 4096);
  EXPECT_EQ(state_floats(4097), 6 * 4096);
  EXPECT_EQ(state_bytes(0), 0);
  EXPECT_EQ(state_bytes(int64_t{1} << 40), int64_t{12} << 40);
}

TEST(StateBlocks, InterleavesMomentsAndMaster) {
  std::vector<float> memory(state_floats(5000));
  const StateBlocks blocks(memory.data(), 5000);
  EXPECT_EQ(blocks.at(StatePart::kFirstMoment, 7), &memory[7]);
  EXPECT_EQ(blocks.at(StatePart::kSecondMoment, 7), &memory[4096 + 7]);
  EXPECT_EQ(blocks.at(StatePart::kMaster, 4097), &memory[3 * 4096 + 2 * 4096 + 1]);
}

TEST(StateBlocks, CopiesRangesAcrossBlocks) {
  std::vector<float> memory(state_floats(10000), -1.0f);
  const StateBlocks blocks(memory.data(), 10000);
  std::vector<float> in(5000), out(5000);
  std::iota(in.begin(), in.end(), 0.0f);
  blocks.copy_in(StatePart::kMaster, 4000, in);
  blocks.copy_out(StatePart::kMaster, 4000, out);
  EXPECT_EQ(out, in);
  EXPECT_EQ(*blocks.at(StatePart::kMaster, 3999), -1.0f);
  EXPECT_EQ(*blocks.at(StatePart::kMaster, 4096), 96.0f);
  EXPECT_EQ(*blocks.at(StatePart::kMaster, 9000), -1.0f);
  EXPECT_EQ(*blocks.at(StatePart::kSecondMoment, 4096), -1.0f);
  EXPECT_THROW(blocks.copy_out(StatePart::kMaster, 5001, out), Error);
}

TEST(StateBlocks, ClearsPaddingOnly) {
  std::vector<float> memory(state_floats(4097), 3.0f);
  StateBlocks(memory.data(), 4097).clear_padding();
  EXPECT_EQ(std::accumulate(memory.begin(), memory.end(), 0.0), 3.0 * 3 * 4097);
}

}  // namespace
}  // namespace oom::optim
