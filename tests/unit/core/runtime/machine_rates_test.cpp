// Rates of a machine with more NUMA nodes than this one has.
#include "runtime/machine_rates.h"

#include <gtest/gtest.h>

namespace oom::runtime {
namespace {

TEST(MachineRates, PoolsOfEveryNodeAreTimed) {
  const hardware::Topology two = hardware::Topology::synthetic("numa:2 core:1 pu:1");
  const std::vector<PoolRates> pools = measure_pools(hardware::plan_cores(two, {.node_of_rank = {0}, .cpu_quota = {}}));
  ASSERT_EQ(pools.size(), 2u);
  for (const PoolRates& node : pools) {
    EXPECT_GT(node.update_parameters, 0);
    EXPECT_GT(node.convert_parameters, 0);
  }
}

TEST(MachineRates, HostMemoryGivesWhatTheOptimizerWasSeenToMove) {
  const CostTable rates = measure_machine_rates(read_machine(DeviceKind::kCpu, 1), DeviceKind::kCpu, 1);
  EXPECT_GT(rates.update_parameters, 0);
  EXPECT_GE(rates.host_dram_bytes, (24 + 2 + 2) * rates.update_parameters);
}

}  // namespace
}  // namespace oom::runtime
