/// How much host memory this process may use, from everything that limits it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace oom::hardware {

/// Read at one moment. Absent limits are nullopt.
struct HostLimits {
  int64_t memory_total_bytes = 0;                  ///< MemTotal; some machines show memory only as it is touched
  int64_t memory_available_bytes = 0;              ///< MemAvailable
  std::optional<int64_t> cgroup_limit_bytes;       ///< lowest limit of this process's cgroup and its ancestors
  std::optional<int64_t> cgroup_available_bytes;   ///< lowest (limit - use without reclaimable file cache) of the same
  std::string cgroup_limit_path;                   ///< the file that holds cgroup_limit_bytes
  std::optional<int64_t> memlock_bytes;            ///< RLIMIT_MEMLOCK
  int64_t shared_memory_bytes = 0;                 ///< size of /dev/shm; 0 when there is none
  std::optional<double> cpu_quota;                 ///< processors' worth of time that cgroups allow
};

/// Reads /proc and the cgroup trees (versions 1 and 2, mounted together or not) under `root`; a tree of files in tests.
/// What cannot be read limits nothing.
HostLimits read_host_limits(const std::filesystem::path& root = "/");

/// Returns the host budget for `[budget] host` left out: the lesser of MemAvailable and what the cgroups still allow, less a margin of
/// 4 % and at least 1 GiB for the system, the page cache and this program itself; never negative.
int64_t usable_host_bytes(const HostLimits& limits);

/// Judges a total host budget that the user states. It is believed, even above MemTotal, unless it is above the cgroup's limit: then
/// throws BudgetError with both numbers, the limit's file and the cure.
void check_host_budget(int64_t budget_bytes, const HostLimits& limits);

}  // namespace oom::hardware
