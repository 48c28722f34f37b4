#include "memory/arena_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "oom/error.h"

namespace oom::memory {
namespace {

using ::testing::HasSubstr;

TEST(ArenaLayout, BumpsAndAligns) {
  ArenaLayout layout("NUMA node 0");
  EXPECT_EQ(layout.add("a", "state", 100).offset, 0);
  EXPECT_EQ(layout.add("b", "fixed", 10, kCacheLineBytes).offset, 128);
  EXPECT_EQ(layout.add("c", "state", 5000).offset, 4096);
  EXPECT_EQ(layout.add("d", "state", 0).offset, 12288);
  EXPECT_EQ(layout.size_bytes(), 12288);
  EXPECT_EQ(layout.asked_bytes(), 5110);
  EXPECT_EQ(layout.bytes_by_class().at("state"), 5100);
  EXPECT_EQ(layout.regions()[2].name, "c");
  EXPECT_EQ(layout.describe(), "state 4.98 KiB, fixed 10 B");
}

TEST(ArenaLayout, RefusesWhatDoesNotFitAndSaysWhatIsThere) {
  ArenaLayout layout("GPU 1", 1 << 20);
  layout.add("window 0", "working weight", 1 << 19);
  layout.add("exact", "state", 1 << 19);
  try {
    layout.add("window 1", "working weight", 1);
    FAIL();
  } catch (const BudgetError& error) {
    EXPECT_THAT(error.what(), HasSubstr("GPU 1: 'window 1' (working weight) needs 1 B, but 1.00 MiB of 1.00 MiB are taken"));
    EXPECT_THAT(error.what(), HasSubstr("working weight 512 KiB"));
  }
  EXPECT_EQ(layout.regions().size(), 2u);
  EXPECT_THROW(layout.add("huge", "state", std::numeric_limits<int64_t>::max()), BudgetError);
}

TEST(ArenaLayout, RefusesOtherAlignments) {
  ArenaLayout layout("NUMA node 0");
  EXPECT_THROW(layout.add("a", "state", 1, 3), Error);
}

}  // namespace
}  // namespace oom::memory
