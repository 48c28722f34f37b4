// Planning of a tiny model with the real plugins of the build tree.
#include "runtime/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner_fixture.h"

namespace oom::runtime {
namespace {

using ::testing::HasSubstr;

// A budget that is used to the last byte fits; a byte less does not.
TEST_F(Planner, GpuBudgetHoldsToTheByte) {
  const PlannedRun roomy = fitting({"train.updates=overlapped"});
  const int64_t peak = std::max(roomy.account.gpus[0].peak_bytes, roomy.account.gpus[1].peak_bytes);
  const auto with = [&](int64_t bytes) { return plan({"train.updates=overlapped", cat("budget.gpu=", bytes), "budget.headroom=1000"}); };
  EXPECT_TRUE(with(peak + 1000).run);
  const PlanAnswer refused = with(peak + 999);
  EXPECT_FALSE(refused.run);
  EXPECT_THAT(refused.refusal.why, HasSubstr("budget.gpu"));
}

// Where the user leaves it to the engine, layers are cut and inputs regenerated until the plan fits.
TEST_F(Planner, FindsActivationsThatFit) {
  const std::vector<std::string> free{"train.updates=overlapped", "budget.headroom=0", "data.sequence_length=2048", "offload.attention_head_group=auto", "offload.moe_chunk=auto", "offload.sub_batch=auto",
                                      "offload.keep_attention=auto", "offload.keep_boundaries=auto", "offload.buffers=auto"};
  const PlannedRun roomy = fitting(free);
  std::vector<std::string> tight = free;
  tight.push_back(cat("budget.gpu=", std::max(roomy.account.gpus[0].peak_bytes, roomy.account.gpus[1].peak_bytes) - 1));
  const PlannedRun cut = fitting(tight);
  EXPECT_NE(cut.plan.settings.at("offload"), roomy.plan.settings.at("offload"));
  EXPECT_LT(cut.account.gpus[0].peak_bytes, roomy.account.gpus[0].peak_bytes);
}

TEST_F(Planner, HostBudgetHoldsToTheByte) {
  const PlannedRun roomy = fitting({"train.updates=overlapped", "state.weights=cached", "budget.host=[\"8GiB\"]"});
  const int64_t peak = roomy.account.nodes[0].peak_bytes;
  EXPECT_TRUE(plan({"train.updates=overlapped", "state.weights=cached", cat("budget.host=[", peak, "]")}).run);
  EXPECT_FALSE(plan({"train.updates=overlapped", "state.weights=cached", cat("budget.host=[", peak - 1, "]")}).run);
}

// On GPUs a backward that repeats is priced as the other kernel it is; on the CPU device there is one.
TEST_F(Planner, DeterministicAttentionIsPricedOnGpus) {
  const auto plan_on = [&](const std::string& device, bool deterministic) {
    return fitting({"data.sequence_length=4096", cat("engine.device=", device), "budget.gpu=\"40GiB\"", cat("engine.deterministic=", deterministic ? "true" : "false")});
  };
  const PlannedRun usual = plan_on("cuda", false), repeats = plan_on("cuda", true);
  EXPECT_GT(repeats.simulation.step_seconds, usual.simulation.step_seconds);
  EXPECT_GT(repeats.account.gpus[0].peak_bytes, usual.account.gpus[0].peak_bytes);
  const PlannedRun cpu = plan_on("cpu", false), same = plan_on("cpu", true);
  EXPECT_EQ(same.simulation.step_seconds, cpu.simulation.step_seconds);
  EXPECT_EQ(same.account.gpus[0].peak_bytes, cpu.account.gpus[0].peak_bytes);
}

TEST_F(Planner, CountsMastersMomentsAndTheProcess) {
  const PlannedRun run = fitting({});
  int64_t state = 0, fixed = 0;
  for (const PlaceAccount& node : run.account.nodes) {
    state += node.at_peak[static_cast<size_t>(BufferClass::kState)];
    fixed += node.at_peak[static_cast<size_t>(BufferClass::kFixed)];
    int64_t sum = 0;
    for (const int64_t bytes : node.at_peak) sum += bytes;
    EXPECT_EQ(sum, node.peak_bytes);
  }
  EXPECT_GE(state, 12 * 392832);
  EXPECT_GT(fixed, int64_t{100} << 20);
  EXPECT_GT(run.simulation.step_seconds, 0);
  EXPECT_FALSE(run.bound_by.empty());
}

TEST_F(Planner, RefusalNamesANearestPlanThatFits) {
  const PlannedRun roomy = fitting({});
  const int64_t peak = std::max(roomy.account.gpus[0].peak_bytes, roomy.account.gpus[1].peak_bytes);
  const std::vector<std::string> tight{cat("budget.gpu=", peak - 4096), "budget.headroom=0"};
  const PlanAnswer answer = plan(tight);
  ASSERT_FALSE(answer.run);
  const NearestPlan& nearest = answer.refusal.nearest;
  ASSERT_TRUE(nearest.fits) << nearest.describe();
  ASSERT_FALSE(nearest.changes.empty());
  // It is true: with those changes, planning succeeds, and needs what was said.
  std::vector<std::string> changed = tight;
  for (const auto& [key, value] : nearest.changes) changed.push_back(cat(key, "=", value));
  const PlannedRun run = fitting(changed);
  EXPECT_LE(run.account.gpus.at(0).peak_bytes, peak - 4096);
  EXPECT_EQ(run.account.gpus.at(0).peak_bytes, nearest.account.gpus.at(0).peak_bytes);
}

TEST_F(Planner, RefusalSaysWhatTheSmallestNeeds) {
  const PlanAnswer answer = plan({"budget.host=\"1MiB\""});
  ASSERT_FALSE(answer.run);
  EXPECT_FALSE(answer.refusal.nearest.fits);
  EXPECT_FALSE(answer.refusal.nearest.shortfalls.empty());
  EXPECT_THAT(answer.refusal.nearest.describe(), HasSubstr("no plan fits"));
  Session session((folder_ / "run.toml").string(), {"budget.host=\"1MiB\""});
  EXPECT_THROW((void)make_plan(session), BudgetError);
}

TEST_F(Planner, DefersWhatClippingAndUsersAskFor) {
  EXPECT_EQ(fitting({"train.clip_norm=1.0"}).plan.deferred_layers, 3);
  EXPECT_EQ(fitting({"train.updates=deferred"}).plan.deferred_layers, 3);
  EXPECT_EQ(fitting({"train.updates=overlapped"}).plan.deferred_layers, 0);
}

TEST_F(Planner, ChoosesADeferralThatIsNotSlower) {
  const PlannedRun chosen = fitting({});
  EXPECT_LT(chosen.plan.deferred_layers, 3);
  EXPECT_LE(chosen.simulation.step_seconds, fitting({"train.updates=overlapped"}).simulation.step_seconds);
  EXPECT_THAT(chosen.evidence, HasSubstr("plans tried"));
}

TEST_F(Planner, PlanFileIsExecutedAsItStands) {
  PlannedRun made = fitting({});
  made.plan.deferred_layers = 1;
  made.plan.transfer.windows = 3;
  const PlannedRun run = fitting({written(made.plan)});
  EXPECT_EQ(run.plan.deferred_layers, 1);
  EXPECT_EQ(run.plan.transfer.windows, 3);
  EXPECT_GT(run.account.gpus[0].peak_bytes, made.account.gpus[0].peak_bytes);
}

// What a strategy keeps among its own settings is executed as edited.
TEST_F(Planner, EditedSettingsAreReadBack) {
  Plan plan = fitting({}).plan;
  EXPECT_TRUE(plan.transfer.shard_delivery_bank);
  plan.settings["local"]["delivery"] = "\"full\"";
  const PlannedRun full = fitting({written(plan)});
  EXPECT_FALSE(full.plan.transfer.shard_delivery_bank);
  const auto h2d_bytes = [](const PlannedRun& run) {
    double bytes = 0;
    for (const Stage& stage : run.program.stages) bytes += stage.cost.h2d_bytes;
    return bytes;
  };
  EXPECT_GT(h2d_bytes(full), 1.5 * h2d_bytes(fitting({"train.updates=overlapped"})));
  plan.settings["local"]["delivery"] = "\"shard\"";
  plan.settings["offload"]["moe_chunk"] = "16";
  const PlannedRun cut = fitting({written(plan)});
  EXPECT_EQ(cut.plan.settings.at("offload").at("moe_chunk"), "16");
  EXPECT_GT(cut.program.stages.size(), full.program.stages.size());
}

TEST_F(Planner, EditedChunkOfExpertParallelismIsReadBack) {
  Plan plan = fitting({"engine.experts=ep"}).plan;
  plan.settings["ep"]["routing_chunk"] = "16";
  const size_t whole = fitting({"engine.experts=ep"}).program.stages.size();
  EXPECT_GT(fitting({"engine.experts=ep", written(plan)}).program.stages.size(), whole);
  plan.settings["ep"]["routing_chunk"] = "0";
  EXPECT_THROW((void)this->plan({"engine.experts=ep", written(plan)}), FileError);
}

TEST_F(Planner, PlanFileForAnotherRunIsRefusedUnlessInsisted) {
  const std::string stated = written(fitting({}).plan);
  EXPECT_THROW((void)plan({stated, "data.sequence_length=64"}), FileError);
  const PlannedRun run = fitting({stated, "data.sequence_length=64", "engine.allow_plan_mismatch=true"});
  EXPECT_EQ(run.plan.workload.sequence_length, 64);
}

TEST_F(Planner, PlanFileThatCannotBeExecutedIsRefused) {
  const Plan made = fitting({}).plan;
  Plan plan = made;
  plan.deferred_layers = 4;
  EXPECT_THROW((void)this->plan({written(plan)}), FileError);
  plan = made;
  plan.resident_layers = {3};  // the model has layers 0 to 2
  EXPECT_THROW((void)this->plan({written(plan)}), FileError);
  plan = made;
  plan.settings["local"]["delivery"] = "\"sometimes\"";
  EXPECT_THROW((void)this->plan({written(plan)}), FileError);
  plan = made;
  plan.experts = "nobody";
  EXPECT_THROW((void)this->plan({written(plan)}), FileError);
}

TEST_F(Planner, PlanFileThatDoesNotFitIsRefused) {
  const PlannedRun made = fitting({});
  const std::string budget = cat("budget.gpu=", made.account.gpus[0].peak_bytes - 1);
  const PlanAnswer answer = plan({written(made.plan), budget, "budget.headroom=0"});
  ASSERT_FALSE(answer.run);
  EXPECT_THAT(answer.refusal.why, HasSubstr("plan.toml: this plan"));
}

TEST_F(Planner, PlansForGpusThatAreNotHere) {
  const std::vector<std::string> cuda{"engine.device=cuda", "budget.gpu=\"80GiB\"", "budget.host=[\"100GiB\", \"100GiB\"]"};
  const PlannedRun run = fitting(cuda);
  EXPECT_EQ(run.plan.numa_nodes, 2);
  EXPECT_EQ(run.gpu_budget_bytes, (std::vector<int64_t>{int64_t{80} << 30, int64_t{80} << 30}));
  EXPECT_GT(run.account.gpus[0].at_peak[static_cast<size_t>(BufferClass::kFixed)], 0);
}

}  // namespace
}  // namespace oom::runtime
