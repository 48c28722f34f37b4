#include "hardware/process_memory.h"

#include <gtest/gtest.h>

#include <vector>

#include "temporary_tree.h"

namespace oom::hardware {
namespace {

TEST(ProcessMemory, GrowsWithTouchedMemory) {
  const int64_t before = process_pss_bytes();
  const std::vector<char> touched(64 << 20, 1);
  EXPECT_GE(process_pss_bytes() - before, 60 << 20) << touched.size();
  EXPECT_GE(process_memory().rss_bytes, process_pss_bytes() / 2);
}

TEST(ProcessMemory, ReadsTheRollupInKilobytes) {
  const TemporaryTree tree({{"smaps_rollup", "7f-8f ---p 0 00:00 0 [rollup]\nRss:   5000 kB\nPss:   3000 kB\nPss_Dirty: 1 kB\n"}});
  EXPECT_EQ(process_memory(tree.root()).rss_bytes, 5000 * 1024);
  EXPECT_EQ(process_memory(tree.root()).pss_bytes, 3000 * 1024);
}

TEST(ProcessMemory, FallsBackOnStatm) {
  const TemporaryTree tree({{"statm", "900 100 5 1 0 2 0\n"}});
  EXPECT_EQ(process_memory(tree.root()).pss_bytes, 100 * 4096);
}

}  // namespace
}  // namespace oom::hardware
