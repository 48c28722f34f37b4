/// The machine's NUMA nodes: their cores and memory, and which one a GPU is near.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace oom::hardware {

/// A physical core: the operating-system numbers of its hardware threads, lowest first.
struct Core {
  std::vector<int> cpus;
};

struct NumaNode {
  int os_index = 0;         ///< what mbind and /sys call it
  int64_t memory_bytes = 0; ///< installed; 0 when the system does not say
  std::vector<Core> cores;  ///< those this process may use; empty for memory without processors
};

/// Plain data. Nodes are counted from 0 in the order of `nodes`, which is the numbering everywhere else in this program.
struct Topology {
  std::vector<NumaNode> nodes;  ///< at least one

  /// Reads this machine through hwloc, cut to the processors that the calling thread may run on. Throws DeviceError when hwloc fails.
  static Topology detect();
  /// Builds a machine from a hwloc synthetic description: "numa:2 core:4 pu:1". Throws Error when it is none.
  static Topology synthetic(const std::string& description);

  int core_count() const;
  /// Returns the first hardware thread of each core of a node.
  std::vector<int> first_cpus(int node) const;
  /// Returns the node near a PCI device ("0000:17:00.0", case and a long domain are no matter); 0 where the system does not say.
  int node_of_pci_device(std::string bus_id, const std::filesystem::path& sys = "/sys") const;
};

}  // namespace oom::hardware
