/// The process's long-lived host memory: one touched and registered range on each NUMA node, given out once, never returned.
///
/// Order: construct (maps, touches, registers: about 15 s for 200 GiB) -> allocate for each region, in the planner's order -> use ->
/// destroy, after every copy from or to it has ended.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hardware/host_limits.h"
#include "memory/arena_layout.h"
#include "memory/host_mapping.h"
#include "memory/pinned_registry.h"

namespace oom::memory {

struct HostArenaProgress {
  enum class Phase { kTouch, kRegister } phase;
  int64_t done_bytes;
  int64_t total_bytes;
};

struct HostArenaOptions {
  struct Node {
    int64_t bytes = 0;            ///< what the planner's ArenaLayout for this node needs; rounded up to a page
    int os_index = -1;            ///< NumaNode::os_index; -1: memory of any node
    std::vector<int> touch_cpus;  ///< one touching thread each, on this node (eight are enough); empty: one unpinned thread
  };
  std::vector<Node> nodes;
  PinnedRegistry* registry = nullptr;             ///< borrowed, must outlive the arena; null: nothing is registered
  std::optional<hardware::HostLimits> limits;     ///< what admission read; absent: read now
  bool poison = false;                            ///< fill with kPoison instead of leaving zeros, for tests and debug runs
  std::function<void(const HostArenaProgress&)> progress;  ///< called on the constructing thread, some ten times a second
};

/// A float NaN whose halves are BF16 NaNs: what was never written is seen in any sum.
inline constexpr uint32_t kPoison = 0x7fc17fc1u;

class HostArena {
 public:
  /// Throws BudgetError when the total is above the cgroup's limit or cannot be mapped, DeviceError when it cannot be registered.
  explicit HostArena(const HostArenaOptions& options);
  ~HostArena();
  HostArena(const HostArena&) = delete;
  HostArena& operator=(const HostArena&) = delete;

  /// Takes the next `bytes` of a node's range (zero or poison). Valid until the arena dies. Throws BudgetError when the range is full.
  std::byte* allocate(int node, std::string name, std::string memory_class, int64_t bytes, int64_t alignment = kPageBytes);

  int node_count() const { return static_cast<int>(nodes_.size()); }
  /// The account of a node: regions, bytes by class, capacity.
  const ArenaLayout& layout(int node) const { return nodes_.at(node)->layout; }
  /// Bytes mapped and, with a registry, registered, over all nodes: what was asked for, rounded up to a page a node.
  int64_t mapped_bytes() const;

 private:
  struct NodeRange {
    HostMapping mapping;
    ArenaLayout layout;
    bool registered = false;
  };

  void touch(const HostArenaOptions& options);
  void register_ranges(const HostArenaOptions& options);
  void unregister_ranges() noexcept;

  PinnedRegistry* registry_;
  std::vector<std::unique_ptr<NodeRange>> nodes_;
};

}  // namespace oom::memory
