/// What this process holds in host memory now.
#pragma once

#include <cstdint>
#include <filesystem>

namespace oom::hardware {

struct ProcessMemory {
  int64_t rss_bytes = 0;  ///< resident, shared pages counted whole
  int64_t pss_bytes = 0;  ///< resident, each shared page divided by the number of processes that map it
};

/// Reads smaps_rollup (some milliseconds for hundreds of GiB in 4 KiB pages); statm's resident size stands for both where it is missing.
ProcessMemory process_memory(const std::filesystem::path& proc_self = "/proc/self");
inline int64_t process_pss_bytes() { return process_memory().pss_bytes; }

}  // namespace oom::hardware
