#include "hardware/topology.h"

#include <hwloc.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <set>

#include "hardware/thread_placement.h"
#include "oom/error.h"

namespace oom::hardware {
namespace {

struct DestroyTopology {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
using HwlocTopology = std::unique_ptr<hwloc_topology, DestroyTopology>;

HwlocTopology new_topology() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) throw DeviceError(cat("hwloc_topology_init: ", std::strerror(errno)));
  return HwlocTopology(raw);
}

/// A core belongs to the first node that lists it (sub-NUMA memory of several kinds can share cores).
Topology read(hwloc_topology_t hwloc, const std::set<int>* allowed) {
  Topology topology;
  std::set<int> taken;
  const int nodes = hwloc_get_nbobjs_by_type(hwloc, HWLOC_OBJ_NUMANODE);
  for (int n = 0; n < nodes; ++n) {
    const hwloc_obj_t node = hwloc_get_obj_by_type(hwloc, HWLOC_OBJ_NUMANODE, n);
    NumaNode& out = topology.nodes.emplace_back();
    out.os_index = static_cast<int>(node->os_index);
    out.memory_bytes = static_cast<int64_t>(node->attr->numanode.local_memory);
    const bool has_cores = hwloc_get_nbobjs_inside_cpuset_by_type(hwloc, node->cpuset, HWLOC_OBJ_CORE) > 0;
    const hwloc_obj_type_t unit = has_cores ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    for (hwloc_obj_t core = nullptr; (core = hwloc_get_next_obj_inside_cpuset_by_type(hwloc, node->cpuset, unit, core));) {
      Core cpus;
      unsigned cpu = 0;
      hwloc_bitmap_foreach_begin(cpu, core->cpuset) {
        const int number = static_cast<int>(cpu);
        if ((!allowed || allowed->contains(number)) && taken.insert(number).second) cpus.cpus.push_back(number);
      }
      hwloc_bitmap_foreach_end();
      if (!cpus.cpus.empty()) out.cores.push_back(std::move(cpus));
    }
  }
  OOM_CHECK(!topology.nodes.empty(), "hwloc lists no NUMA node");
  return topology;
}

}  // namespace

Topology Topology::detect() {
  const HwlocTopology hwloc = new_topology();
  if (hwloc_topology_load(hwloc.get()) != 0) throw DeviceError(cat("hwloc_topology_load: ", std::strerror(errno)));
  const std::vector<int> cpus = allowed_cpus();
  const std::set<int> allowed(cpus.begin(), cpus.end());
  Topology topology = read(hwloc.get(), allowed.empty() ? nullptr : &allowed);
  OOM_CHECK_GT(topology.core_count(), 0, "hwloc lists no processor that this thread may run on");
  return topology;
}

Topology Topology::synthetic(const std::string& description) {
  const HwlocTopology hwloc = new_topology();
  if (hwloc_topology_set_synthetic(hwloc.get(), description.c_str()) != 0 || hwloc_topology_load(hwloc.get()) != 0)
    throw Error(cat("hwloc cannot read the synthetic machine '", description, "'"));
  return read(hwloc.get(), nullptr);
}

int Topology::core_count() const {
  int count = 0;
  for (const NumaNode& node : nodes) count += static_cast<int>(node.cores.size());
  return count;
}

std::vector<int> Topology::first_cpus(int node) const {
  std::vector<int> cpus;
  for (const Core& core : nodes.at(node).cores) cpus.push_back(core.cpus.front());
  return cpus;
}

int Topology::node_of_pci_device(std::string bus_id, const std::filesystem::path& sys) const {
  std::ranges::transform(bus_id, bus_id.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  // CUDA and NVML write the domain with four or eight digits, /sys with four.
  const size_t colon = bus_id.find(':');
  if (colon != std::string::npos && colon > 4) bus_id.erase(0, colon - 4);
  int os_index = -1;
  std::ifstream(sys / "bus/pci/devices" / bus_id / "numa_node") >> os_index;
  for (size_t node = 0; node < nodes.size(); ++node)
    if (nodes[node].os_index == os_index) return static_cast<int>(node);
  return 0;
}

}  // namespace oom::hardware
