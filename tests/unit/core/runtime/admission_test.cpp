#include "runtime/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../scratch_folder.h"

namespace oom::runtime {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kGiB = int64_t{1} << 30;

config::Config config_of(const std::string& text) { return config::parse_config(cat("[model]\npath = \"m\"\n", text), "run.toml", {}, {}); }

PlaceAccount place(Place where, int64_t peak) {
  PlaceAccount account;
  account.place = where;
  account.persistent_bytes = account.peak_bytes = peak;
  account.persistent[static_cast<size_t>(BufferClass::kState)] = account.at_peak[static_cast<size_t>(BufferClass::kState)] = peak;
  return account;
}

Machine cpu_machine(const std::string& topology) {
  Machine machine;
  machine.topology = hardware::Topology::synthetic(topology);
  machine.limits.memory_available_bytes = 100 * kGiB;
  return machine;
}

Plan cuda_plan(int ranks, int nodes) {
  Plan plan;
  plan.device = DeviceKind::kCuda;
  plan.ranks = ranks;
  plan.numa_nodes = nodes;
  plan.node_of_rank.assign(ranks, 0);
  return plan;
}

TEST(Admission, ToTheByte) {
  const Budgets budgets{.gpu_bytes = {1000}, .headroom_bytes = 100, .host_bytes = {5000}};
  MemoryAccount account{.gpus = {place(Place::gpu(0), 900)}, .nodes = {place(Place::numa(0), 5000)}};
  EXPECT_TRUE(find_shortfalls(account, budgets).empty());
  account.gpus[0].peak_bytes = 901;
  account.nodes[0].peak_bytes = 5001;
  const std::vector<Shortfall> shortfalls = find_shortfalls(account, budgets);
  ASSERT_EQ(shortfalls.size(), 2u);
  EXPECT_EQ(shortfalls[0].over_bytes(), 1);
  EXPECT_EQ(shortfalls[1].over_bytes(), 1);
  EXPECT_THAT(describe(shortfalls), HasSubstr("gpu 0 needs"));
  EXPECT_THAT(describe(shortfalls), HasSubstr("5,001 bytes"));
  EXPECT_THAT(describe(shortfalls), HasSubstr("state"));
}

TEST(Admission, FixedBytesCountEverywhere) {
  PlaceAccount account = place(Place::gpu(0), 100);
  account.live = {{0, 100}};
  add_fixed(account, "context", BufferClass::kFixed, 7);
  EXPECT_EQ(account.peak_bytes, 107);
  EXPECT_EQ(account.persistent_bytes, 107);
  EXPECT_EQ(account.at_peak[static_cast<size_t>(BufferClass::kFixed)], 7);
  EXPECT_EQ(account.live[0].bytes, 107);
}

TEST(Admission, HostBudgetOfTheMachineIsSharedByItsNodes) {
  const Machine machine = cpu_machine("numa:2 core:2 pu:1");
  const Plan plan = cuda_plan(1, 2);
  const Budgets one = read_budgets(config_of("[budget]\ngpu = \"80GiB\"\nhost = 101\n"), plan, machine, Purpose::kPlanOnly);
  EXPECT_EQ(one.host_bytes, (std::vector<int64_t>{51, 50}));
  const Budgets two = read_budgets(config_of("[budget]\ngpu = \"80GiB\"\nhost = [\"1GiB\", \"2GiB\"]\n"), plan, machine, Purpose::kPlanOnly);
  EXPECT_EQ(two.host_bytes, (std::vector<int64_t>{kGiB, 2 * kGiB}));
}

TEST(Admission, GpuMemoryOfAMachineOneDoesNotHaveMustBeStated) {
  Machine machine = cpu_machine("numa:1 core:2 pu:1");
  machine.is_target = false;
  try {
    (void)read_budgets(config_of(""), cuda_plan(2, 1), machine, Purpose::kPlanOnly);
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("budget.gpu"));
  }
}

TEST(Admission, CgroupLimitCountsForRunsAlone) {
  Machine machine = cpu_machine("numa:1 core:2 pu:1");
  machine.limits.cgroup_limit_bytes = 10 * kGiB;
  const config::Config config = config_of("[budget]\ngpu = \"80GiB\"\nhost = \"11GiB\"\n");
  EXPECT_THROW((void)read_budgets(config, cuda_plan(1, 1), machine, Purpose::kTrain), BudgetError);
  EXPECT_NO_THROW((void)read_budgets(config, cuda_plan(1, 1), machine, Purpose::kPlanOnly));
}

TEST(Admission, NodesAreThoseOfTheBudgetThenOfTheMachine) {
  const Machine machine = cpu_machine("numa:2 core:2 pu:1");
  EXPECT_EQ(choose_numa_nodes(config_of(""), machine, Purpose::kTrain), 2);
  const config::Config three = config_of("[budget]\nhost = [1, 1, 1]\n");
  EXPECT_EQ(choose_numa_nodes(three, machine, Purpose::kPlanOnly), 3);
  EXPECT_THROW((void)choose_numa_nodes(three, machine, Purpose::kTrain), ConfigError);
  EXPECT_EQ(choose_node_of_rank(machine, DeviceKind::kCpu, 4, 2), (std::vector<int>{0, 1, 0, 1}));
}

TEST(Admission, CheckpointsNeedDisk) {
  const oom::testing::ScratchFolder folder;
  const std::string output = cat("[output]\ndir = \"", folder.path().string(), "/run\"\n");
  EXPECT_NO_THROW(check_disk(config_of(output), 1000));
  const int64_t huge = int64_t{1} << 50;
  EXPECT_THROW(check_disk(config_of(output), huge), BudgetError);
  EXPECT_NO_THROW(check_disk(config_of(cat(output, "[checkpoint]\nat_end = false\n")), huge));
  EXPECT_THROW(check_disk(config_of(cat(output, "[checkpoint]\nat_end = false\nevery = 10\n")), huge), BudgetError);
  try {
    check_disk(config_of(cat(output, "[checkpoint]\nevery = 10\nkeep = 1\nkeep_best = 2\n[eval]\nholdout_samples = 8\n")), huge);
    ADD_FAILURE() << "the best ones were not counted";
  } catch (const BudgetError& error) {
    EXPECT_THAT(error.what(), HasSubstr("4 checkpoints of"));  // one newest, two best, one being written
    EXPECT_THAT(error.what(), HasSubstr("checkpoint.keep_best"));
  }
}

}  // namespace
}  // namespace oom::runtime
