#include "hardware/host_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hardware/cgroup.h"
#include "oom/error.h"
#include "temporary_tree.h"

namespace oom::hardware {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kGiB = int64_t{1} << 30;
const char* const kMeminfo = "MemTotal:       268435456 kB\nMemFree:  1 kB\nMemAvailable:   209715200 kB\n";  // 256 and 200 GiB
const char* const kSecondMount = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";

TEST(HostLimits, ReadsVersion2AndTheLowestAncestor) {
  const TemporaryTree tree({{"proc/meminfo", kMeminfo},
                            {"proc/self/cgroup", "0::/jobs/train\n"},
                            {"proc/self/mountinfo", kSecondMount},
                            {"sys/fs/cgroup/jobs/train/memory.max", "max\n"},
                            {"sys/fs/cgroup/jobs/train/memory.current", "1073741824\n"},
                            {"sys/fs/cgroup/jobs/memory.max", "137438953472\n"},       // 128 GiB
                            {"sys/fs/cgroup/jobs/memory.current", "32212254720\n"},    // 30 GiB, of which
                            {"sys/fs/cgroup/jobs/memory.stat", "anon 5\ninactive_file 21474836480\n"},  // 20 GiB are cache
                            {"sys/fs/cgroup/jobs/cpu.max", "1600000 100000\n"},
                            {"sys/fs/cgroup/jobs/train/cpu.max", "max 100000\n"}});
  const HostLimits limits = read_host_limits(tree.root());
  EXPECT_EQ(limits.memory_total_bytes, 256 * kGiB);
  EXPECT_EQ(limits.memory_available_bytes, 200 * kGiB);
  EXPECT_EQ(limits.cgroup_limit_bytes, 128 * kGiB);
  EXPECT_EQ(limits.cgroup_available_bytes, 118 * kGiB);
  EXPECT_EQ(limits.cgroup_limit_path, (tree.root() / "sys/fs/cgroup/jobs/memory.max").string());
  EXPECT_EQ(limits.cpu_quota, 16.0);
  EXPECT_EQ(usable_host_bytes(limits), 118 * kGiB - 118 * kGiB / 25);
}

TEST(HostLimits, ReadsVersion1WithItsMountBesideVersion2) {
  const TemporaryTree tree(
      {{"proc/meminfo", kMeminfo},
       {"proc/self/cgroup", "4:memory:/api/x\n3:cpu,cpuacct:/api/x\n0::/\n"},
       {"proc/self/mountinfo", "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
                               "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
                               "36 31 0:33 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
                               "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"},
       {"sys/fs/cgroup/unified/cgroup.procs", ""},
       {"sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"},
       {"sys/fs/cgroup/memory/api/memory.limit_in_bytes", "9223372036854771712\n"},
       {"sys/fs/cgroup/memory/api/x/memory.limit_in_bytes", "68719476736\n"},  // 64 GiB
       {"sys/fs/cgroup/memory/api/x/memory.usage_in_bytes", "17179869184\n"},  // 16 GiB
       {"sys/fs/cgroup/memory/api/x/memory.stat", "inactive_file 7\ntotal_inactive_file 4294967296\n"},
       {"sys/fs/cgroup/cpu/api/x/cpu.cfs_quota_us", "250000\n"},
       {"sys/fs/cgroup/cpu/api/x/cpu.cfs_period_us", "100000\n"},
       {"sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"},
       {"sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"}});
  const HostLimits limits = read_host_limits(tree.root());
  EXPECT_EQ(limits.cgroup_limit_bytes, 64 * kGiB);
  EXPECT_EQ(limits.cgroup_available_bytes, 52 * kGiB);
  EXPECT_EQ(limits.cpu_quota, 2.5);
}

TEST(HostLimits, FindsTheOwnGroupWhereTheMountBeginsAtIt) {
  // A container without a cgroup namespace: the group's name is the host's, the mount begins at that group.
  const TemporaryTree tree({{"proc/meminfo", kMeminfo},
                            {"proc/self/cgroup", "0::/docker/abc\n"},
                            {"proc/self/mountinfo", "30 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n"},
                            {"sys/fs/cgroup/memory.max", "34359738368\n"}});
  EXPECT_EQ(read_host_limits(tree.root()).cgroup_limit_bytes, 32 * kGiB);
  // Or the mount says "/" and the named group does not exist in it.
  const TemporaryTree other({{"proc/self/cgroup", "0::/docker/abc\n"},
                             {"proc/self/mountinfo", kSecondMount},
                             {"sys/fs/cgroup/memory.max", "34359738368\n"}});
  EXPECT_EQ(read_host_limits(other.root()).cgroup_limit_bytes, 32 * kGiB);
  // Or the name leads out of the namespace.
  const TemporaryTree outside({{"proc/self/cgroup", "0::/../..\n"},
                               {"proc/self/mountinfo", kSecondMount},
                               {"sys/fs/cgroup/memory.max", "34359738368\n"}});
  EXPECT_EQ(cgroup_folders(outside.root(), "memory"), std::vector<std::filesystem::path>{outside.root() / "sys/fs/cgroup"});
}

TEST(HostLimits, WithoutCgroupsMemAvailableRules) {
  const TemporaryTree tree({{"proc/meminfo", kMeminfo}});
  const HostLimits limits = read_host_limits(tree.root());
  EXPECT_EQ(limits.cgroup_limit_bytes, std::nullopt);
  EXPECT_EQ(limits.cpu_quota, std::nullopt);
  EXPECT_EQ(usable_host_bytes(limits), 192 * kGiB);
  check_host_budget(1000 * kGiB, limits);  // memory that shows only as it is touched: believed
}

TEST(HostLimits, KeepsAMarginAndNeverGoesBelowZero) {
  HostLimits limits;
  limits.memory_available_bytes = 3 * kGiB;
  EXPECT_EQ(usable_host_bytes(limits), 2 * kGiB);
  limits.memory_available_bytes = kGiB / 2;
  EXPECT_EQ(usable_host_bytes(limits), 0);
}

TEST(HostLimits, ABudgetAboveTheCgroupLimitIsRefusedWithNumbers) {
  HostLimits limits;
  limits.memory_available_bytes = 200 * kGiB;
  limits.cgroup_limit_bytes = 64 * kGiB;
  limits.cgroup_available_bytes = 50 * kGiB;
  limits.cgroup_limit_path = "/sys/fs/cgroup/memory.max";
  check_host_budget(64 * kGiB, limits);
  try {
    check_host_budget(65 * kGiB, limits);
    FAIL();
  } catch (const BudgetError& error) {
    EXPECT_THAT(error.what(), HasSubstr("budget.host: 65.0 GiB is above the memory limit of this process's cgroup, 64.0 GiB (/sys/fs/cgroup/memory.max)"));
    EXPECT_THAT(error.what(), HasSubstr("at most 48.0 GiB"));
  }
}

TEST(HostLimits, ReadsThisMachine) {
  const HostLimits limits = read_host_limits();
  EXPECT_GT(limits.memory_total_bytes, 0);
  EXPECT_GT(limits.memory_available_bytes, 0);
  EXPECT_GT(usable_host_bytes(limits), 0);
}

}  // namespace
}  // namespace oom::hardware
