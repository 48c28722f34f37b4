/// How regions lie in one range of memory: offsets by bumping, and an exact account of them. Owns no memory: the planner uses it to
/// price a plan, HostArena and the device arena to execute it, so that both count the same bytes.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace oom::memory {

inline constexpr int64_t kPageBytes = 4096;       ///< alignment of what copy engines and registration see
inline constexpr int64_t kCacheLineBytes = 64;    ///< alignment of small things
inline constexpr int64_t kHugePageBytes = 2 << 20;

constexpr int64_t align_up(int64_t value, int64_t alignment) { return (value + alignment - 1) / alignment * alignment; }

struct ArenaRegion {
  std::string name;          ///< "layer 3 experts", for messages and reports
  std::string memory_class;  ///< "state", "gradient", ...: what accounts are kept by
  int64_t offset = 0;        ///< from the range's start, which is aligned to a page at least
  int64_t bytes = 0;
};

class ArenaLayout {
 public:
  /// `where` is what messages call the range: "NUMA node 0", "GPU 1".
  explicit ArenaLayout(std::string where, int64_t capacity_bytes = std::numeric_limits<int64_t>::max());

  /// Appends a region; `alignment` is kPageBytes or kCacheLineBytes. Throws BudgetError, with what lies in the range by class, when it would end
  /// beyond the capacity.
  const ArenaRegion& add(std::string name, std::string memory_class, int64_t bytes, int64_t alignment = kPageBytes);

  const std::string& where() const { return where_; }
  int64_t capacity_bytes() const { return capacity_bytes_; }
  /// Bytes up to the end of the last region: what a range must hold.
  int64_t size_bytes() const { return size_bytes_; }
  /// Sum of the regions' sizes; size_bytes() less this is what alignment costs.
  int64_t asked_bytes() const { return asked_bytes_; }
  const std::map<std::string, int64_t>& bytes_by_class() const { return bytes_by_class_; }
  const std::vector<ArenaRegion>& regions() const { return regions_; }
  /// Returns "state 12.0 GiB, gradient 2.00 GiB", largest first.
  std::string describe() const;

 private:
  std::string where_;
  int64_t capacity_bytes_;
  int64_t size_bytes_ = 0;
  int64_t asked_bytes_ = 0;
  std::map<std::string, int64_t> bytes_by_class_;
  std::vector<ArenaRegion> regions_;
};

}  // namespace oom::memory
