#include "hardware/core_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "oom/error.h"

namespace oom::hardware {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

CorePlan plan(const std::string& machine, std::vector<int> node_of_rank, std::optional<double> quota = {}) {
  return plan_cores(Topology::synthetic(machine), {std::move(node_of_rank), quota});
}

TEST(CorePlan, GivesEveryCoreOneUserOnALargeMachine) {
  const CorePlan cores = plan("numa:2 core:16 pu:2", {0, 0, 1});
  std::multiset<int> used(cores.helper_cpus.begin(), cores.helper_cpus.end());
  for (const auto& cpus : cores.rank_cpus) {
    EXPECT_EQ(cpus.size(), 1u);
    used.insert(cpus.begin(), cpus.end());
  }
  for (const CorePlan::Node& node : cores.nodes) {
    EXPECT_FALSE(node.shared);
    used.insert(node.prepare.begin(), node.prepare.end());
    used.insert(node.update.begin(), node.update.end());
  }
  EXPECT_EQ(used.size(), 32u);
  EXPECT_EQ(std::set<int>(used.begin(), used.end()).size(), 32u);
  for (int cpu : used) EXPECT_EQ(cpu % 2, 0) << "the second hardware thread of a core is not used";
  EXPECT_EQ(cores.nodes[0].prepare.size(), 3u);
  EXPECT_EQ(cores.nodes[0].update.size(), 10u);
  EXPECT_EQ(cores.nodes[1].update.size(), 11u);
}

TEST(CorePlan, KeepsThreadsOnTheirNode) {
  const CorePlan cores = plan("numa:2 core:8 pu:1", {1, 1});
  for (const auto& cpus : cores.rank_cpus) EXPECT_GE(cpus[0], 8);
  for (int cpu : cores.nodes[0].update) EXPECT_LT(cpu, 8);
  for (int cpu : cores.nodes[1].update) EXPECT_GE(cpu, 8);
}

TEST(CorePlan, DividesFourCoresWithoutHelpers) {
  const CorePlan cores = plan("numa:1 core:4 pu:1", {0, 0});
  EXPECT_THAT(cores.rank_cpus, ElementsAre(ElementsAre(0), ElementsAre(1)));
  EXPECT_THAT(cores.nodes[0].prepare, ElementsAre(2));
  EXPECT_THAT(cores.nodes[0].update, ElementsAre(3));
  EXPECT_THAT(cores.helper_cpus, ElementsAre(0, 1, 2, 3));
}

TEST(CorePlan, SharesOneAndTwoCores) {
  for (const char* machine : {"numa:1 core:1 pu:1", "numa:1 core:2 pu:1"}) {
    const CorePlan cores = plan(machine, {0, 0});
    EXPECT_TRUE(cores.nodes[0].shared);
    EXPECT_EQ(cores.nodes[0].update, cores.nodes[0].prepare);
    EXPECT_EQ(cores.rank_cpus[1], cores.helper_cpus);
    EXPECT_FALSE(cores.nodes[0].update.empty());
  }
}

TEST(CorePlan, SharesANodeWithManyRanks) {
  const CorePlan cores = plan("numa:1 core:8 pu:1", std::vector<int>(8, 0));
  EXPECT_TRUE(cores.nodes[0].shared);
  EXPECT_EQ(cores.rank_cpus[7].size(), 8u);
}

TEST(CorePlan, UsesNoMoreThreadsThanTheQuota) {
  const CorePlan cores = plan("numa:2 core:32 pu:1", {0, 1}, 16.0);
  size_t used = cores.helper_cpus.size() + cores.rank_cpus.size();
  for (const CorePlan::Node& node : cores.nodes) used += node.prepare.size() + node.update.size();
  EXPECT_EQ(used, 16u);
}

TEST(CorePlan, LendsCoresToNodesThatHaveNone) {
  Topology machine = Topology::synthetic("numa:2 core:8 pu:1");
  machine.nodes[1].cores.clear();
  const CorePlan cores = plan_cores(machine, {{1}, {}});
  EXPECT_EQ(cores.nodes[1].update, cores.nodes[0].update);
  EXPECT_TRUE(cores.nodes[1].shared);
  EXPECT_THAT(cores.rank_cpus[0], ElementsAre(0));
}

TEST(CorePlan, SaysWhatItDecided) {
  EXPECT_EQ(plan("numa:1 core:8 pu:1", {0}).describe(), "rank 0: 0\nNUMA node 0: prepare 2; update 3-7\nhelpers: 1\n");
}

TEST(CorePlan, RefusesRanksOnNodesThatAreNotThere) { EXPECT_THROW(plan("numa:1 core:8 pu:1", {1}), Error); }

}  // namespace
}  // namespace oom::hardware
