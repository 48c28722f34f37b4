#include "hardware/host_limits.h"

#include <sys/resource.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <fstream>

#include "base/text.h"
#include "hardware/cgroup.h"
#include "oom/error.h"

namespace oom::hardware {
namespace {

namespace fs = std::filesystem;
using base::format_bytes;

int64_t meminfo_bytes(const fs::path& root, const std::string& key) {
  return read_keyed_number(root / "proc/meminfo", key + ":").value_or(0) * 1024;
}

template <typename Number>
void lower(std::optional<Number>& least, Number value) {
  if (!least || value < *least) least = value;
}

void read_memory_cgroups(const fs::path& root, HostLimits& limits) {
  for (const fs::path& folder : cgroup_folders(root, "memory")) {
    const bool second = fs::exists(folder / "memory.max");
    const fs::path file = folder / (second ? "memory.max" : "memory.limit_in_bytes");
    const std::optional<int64_t> limit = read_limit(file);
    if (!limit) continue;
    if (!limits.cgroup_limit_bytes || *limit < *limits.cgroup_limit_bytes) limits.cgroup_limit_path = file.string();
    lower(limits.cgroup_limit_bytes, *limit);
    // File cache is counted as use, and given back when memory is wanted.
    const int64_t used = read_limit(folder / (second ? "memory.current" : "memory.usage_in_bytes")).value_or(0);
    const int64_t cache = read_keyed_number(folder / "memory.stat", second ? "inactive_file" : "total_inactive_file").value_or(0);
    lower(limits.cgroup_available_bytes, std::max<int64_t>(0, *limit - std::max<int64_t>(0, used - cache)));
  }
}

void read_cpu_cgroups(const fs::path& root, HostLimits& limits) {
  for (const fs::path& folder : cgroup_folders(root, "cpu")) {
    double quota = -1, period = 0;
    std::ifstream second(folder / "cpu.max");
    if (!(second >> quota >> period)) {
      quota = static_cast<double>(read_limit(folder / "cpu.cfs_quota_us").value_or(-1));
      period = static_cast<double>(read_limit(folder / "cpu.cfs_period_us").value_or(0));
    }
    if (quota > 0 && period > 0) lower(limits.cpu_quota, quota / period);
  }
}

}  // namespace

HostLimits read_host_limits(const fs::path& root) {
  HostLimits limits;
  limits.memory_total_bytes = meminfo_bytes(root, "MemTotal");
  limits.memory_available_bytes = meminfo_bytes(root, "MemAvailable");
  read_memory_cgroups(root, limits);
  read_cpu_cgroups(root, limits);
  rlimit memlock{};
  if (getrlimit(RLIMIT_MEMLOCK, &memlock) == 0 && memlock.rlim_cur != RLIM_INFINITY) limits.memlock_bytes = static_cast<int64_t>(memlock.rlim_cur);
  struct statvfs shared {};
  if (statvfs((root / "dev/shm").c_str(), &shared) == 0)
    limits.shared_memory_bytes = static_cast<int64_t>(shared.f_blocks) * static_cast<int64_t>(shared.f_frsize);
  return limits;
}

int64_t usable_host_bytes(const HostLimits& limits) {
  const int64_t free = std::min(limits.memory_available_bytes, limits.cgroup_available_bytes.value_or(limits.memory_available_bytes));
  return std::max<int64_t>(0, free - std::max<int64_t>(int64_t{1} << 30, free / 25));
}

void check_host_budget(int64_t budget_bytes, const HostLimits& limits) {
  if (!limits.cgroup_limit_bytes || budget_bytes <= *limits.cgroup_limit_bytes) return;
  throw BudgetError(cat("budget.host: ", format_bytes(budget_bytes), " is above the memory limit of this process's cgroup, ",
                        format_bytes(*limits.cgroup_limit_bytes), " (", limits.cgroup_limit_path, "). Lower budget.host to at most ",
                        format_bytes(usable_host_bytes(limits)), ", or raise the limit (docker run --memory, sbatch --mem)."));
}

}  // namespace oom::hardware
