#include "hardware/process_memory.h"

#include <unistd.h>

#include <fstream>

#include "hardware/cgroup.h"

namespace oom::hardware {

ProcessMemory process_memory(const std::filesystem::path& proc_self) {
  const auto rss = read_keyed_number(proc_self / "smaps_rollup", "Rss:");
  const auto pss = read_keyed_number(proc_self / "smaps_rollup", "Pss:");
  if (rss && pss) return {*rss * 1024, *pss * 1024};
  int64_t size_pages = 0, resident_pages = 0;
  std::ifstream(proc_self / "statm") >> size_pages >> resident_pages;
  const int64_t bytes = resident_pages * sysconf(_SC_PAGESIZE);
  return {bytes, bytes};
}

}  // namespace oom::hardware
