/// Measures how fast host memory is: what optimizer updates and conversions are bound by.
#pragma once

#include <cstdint>
#include <vector>

namespace oom::hardware {

/// GB/s (10^9 bytes); a copy counts the bytes read and the bytes written.
struct HostBandwidth {
  double read_gb_s = 0;
  double write_gb_s = 0;
  double copy_gb_s = 0;
};

/// Runs one pinned thread on each of `cpus` (empty: one unpinned), each over memory of its own of `bytes_per_thread` that it touched
/// first; best of three passes. Takes 2 x bytes_per_thread x threads of memory and well under a second. Throws BudgetError when the
/// memory cannot be had.
HostBandwidth measure_host_bandwidth(const std::vector<int>& cpus, int64_t bytes_per_thread = int64_t{128} << 20);

}  // namespace oom::hardware
