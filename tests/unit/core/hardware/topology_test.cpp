#include "hardware/topology.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "hardware/thread_placement.h"
#include "oom/error.h"
#include "temporary_tree.h"

namespace oom::hardware {
namespace {

TEST(Topology, ReadsSyntheticMachines) {
  const Topology machine = Topology::synthetic("numa:2 core:4 pu:2");
  ASSERT_EQ(machine.nodes.size(), 2u);
  EXPECT_EQ(machine.core_count(), 8);
  EXPECT_EQ(machine.nodes[1].os_index, 1);
  EXPECT_EQ(machine.nodes[1].cores[0].cpus, (std::vector<int>{8, 9}));
  EXPECT_EQ(machine.first_cpus(0), (std::vector<int>{0, 2, 4, 6}));
  EXPECT_GT(machine.nodes[0].memory_bytes, 0);
}

TEST(Topology, RefusesWhatIsNoMachine) { EXPECT_THROW(Topology::synthetic("pony:2"), Error); }

TEST(Topology, DetectsProcessorsThisThreadMayUse) {
  const Topology machine = Topology::detect();
  const std::vector<int> allowed = allowed_cpus();
  size_t cpus = 0;
  for (const NumaNode& node : machine.nodes)
    for (const Core& core : node.cores)
      for (int cpu : core.cpus) {
        EXPECT_NE(std::ranges::find(allowed, cpu), allowed.end());
        ++cpus;
      }
  EXPECT_EQ(cpus, allowed.size());
}

TEST(Topology, FindsTheNodeOfAPciDevice) {
  const TemporaryTree sys({{"bus/pci/devices/0000:17:00.0/numa_node", "1\n"},
                           {"bus/pci/devices/0000:18:00.0/numa_node", "-1\n"},
                           {"bus/pci/devices/0000:aa:00.0/numa_node", "1\n"}});
  const Topology machine = Topology::synthetic("numa:2 core:4 pu:1");
  EXPECT_EQ(machine.node_of_pci_device("0000:17:00.0", sys.root()), 1);
  EXPECT_EQ(machine.node_of_pci_device("00000000:AA:00.0", sys.root()), 1);
  EXPECT_EQ(machine.node_of_pci_device("0000:18:00.0", sys.root()), 0);
  EXPECT_EQ(machine.node_of_pci_device("0000:99:00.0", sys.root()), 0);
}

}  // namespace
}  // namespace oom::hardware
