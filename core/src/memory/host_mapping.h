/// One range of anonymous memory, bound to a NUMA node and backed by huge pages where the system gives them.
#pragma once

#include <cstdint>
#include <string>

namespace oom::memory {

/// Owns the mapping; the range begins on a huge page, and not a byte beyond `bytes` (rounded to pages) is mapped.
class HostMapping {
 public:
  HostMapping() = default;
  /// Maps without touching. `numa_os_index` < 0: any node. Throws BudgetError when the address space is refused; a refused binding or
  /// huge page advice is a debug line.
  HostMapping(int64_t bytes, int numa_os_index, const std::string& where);
  ~HostMapping();
  HostMapping(HostMapping&& other) noexcept;
  HostMapping& operator=(HostMapping&& other) noexcept;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace oom::memory
