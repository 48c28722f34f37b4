#include "memory/host_mapping.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/text.h"
#include "memory/arena_layout.h"
#include "oom/error.h"
#include "oom/log.h"

namespace oom::memory {
namespace {

/// Prefers the node rather than insisting on it: when it is full, pages from another one are better than the kernel's killer.
void prefer_node(std::byte* data, int64_t bytes, int node, const std::string& where) {
  constexpr int kBitsPerWord = 8 * sizeof(unsigned long);
  std::vector<unsigned long> mask(node / kBitsPerWord + 1, 0);
  mask[node / kBitsPerWord] = 1ul << (node % kBitsPerWord);
  if (syscall(SYS_mbind, data, bytes, MPOL_PREFERRED, mask.data(), mask.size() * kBitsPerWord + 1, 0) != 0)
    log_debug("memory: ", where, ": pages are not bound to the node (mbind: ", std::strerror(errno), "); first touch places them");
}

}  // namespace

HostMapping::HostMapping(int64_t bytes, int numa_os_index, const std::string& where) : bytes_(align_up(bytes, kPageBytes)) {
  if (bytes_ == 0) return;
  // Not reserved: some machines show memory only as it is touched, and admission has been decided before.
  const int64_t reserved = bytes_ + kHugePageBytes;
  void* memory = mmap(nullptr, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    throw BudgetError(cat("memory: ", where, ": ", base::format_bytes(bytes_), " could not be mapped: ", std::strerror(errno),
                          ". Lower budget.host, or raise the limit of address space (ulimit -v)."));
  auto* begin = static_cast<std::byte*>(memory);
  const auto skip = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(begin) % kHugePageBytes);
  data_ = begin + skip;
  if (skip > 0) munmap(begin, skip);
  if (reserved > skip + bytes_) munmap(data_ + bytes_, reserved - skip - bytes_);
  if (madvise(data_, bytes_, MADV_HUGEPAGE) != 0) log_debug("memory: ", where, ": no huge pages (madvise: ", std::strerror(errno), ")");
  madvise(data_, bytes_, MADV_DONTFORK);  // children never need it, and pinned pages must not be copied on write
  if (numa_os_index >= 0) prefer_node(data_, bytes_, numa_os_index, where);
}

HostMapping::~HostMapping() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

HostMapping::HostMapping(HostMapping&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

HostMapping& HostMapping::operator=(HostMapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace oom::memory
