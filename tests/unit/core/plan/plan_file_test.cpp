#include "plan/plan_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../scratch_folder.h"
#include "sample_plan.h"

namespace oom::plan {
namespace {

using ::testing::HasSubstr;
using oom::testing::sample_plan;

const PlanPrediction kPrediction{.step_seconds = 2.25, .gpu_peak_bytes = {10, 20}, .host_peak_bytes = {30, 40}, .machine = "2 x H200", .calibration = "costs.toml", .calibration_checksum = "00ff"};

std::string message_of(const std::string& text) {
  try {
    (void)parse_plan(text, "plan.toml");
  } catch (const FileError& error) {
    return error.what();
  }
  ADD_FAILURE() << "accepted:\n" << text;
  return {};
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

TEST(PlanFile, ComesBackWhole) {
  const Plan plan = sample_plan();
  const std::string text = plan_toml(plan, kPrediction);
  const Plan read = parse_plan(text, "plan.toml");
  EXPECT_EQ(plan_toml(read, kPrediction), text);
  EXPECT_EQ(read.node_of_rank, plan.node_of_rank);
  EXPECT_EQ(read.resident_layers, plan.resident_layers);
  EXPECT_TRUE(read.resident_cached_weights);
  EXPECT_EQ(read.retained_feed_forward, plan.retained_feed_forward);
  EXPECT_EQ(read.retained_attention, plan.retained_attention);
  EXPECT_EQ(read.settings, plan.settings);
  EXPECT_EQ(read.workload.gradients, ElementType::kFloat32);
  EXPECT_FALSE(read.transfer.reduce_on_gpu);
}

TEST(PlanFile, SaysWhatWasPredicted) {
  const std::string text = plan_toml(sample_plan(), kPrediction);
  EXPECT_THAT(text, HasSubstr("step_seconds = 2.25"));
  EXPECT_THAT(text, HasSubstr("gpu_peak_bytes = [10, 20]"));
  EXPECT_THAT(text, HasSubstr("host_peak_bytes = [30, 40]"));
}

TEST(PlanFile, PredictionsComeBack) {
  PlanPrediction read;
  (void)parse_plan(plan_toml(sample_plan(), kPrediction), "plan.toml", &read);
  EXPECT_EQ(read.step_seconds, kPrediction.step_seconds);
  EXPECT_EQ(read.gpu_peak_bytes, kPrediction.gpu_peak_bytes);
  EXPECT_EQ(read.host_peak_bytes, kPrediction.host_peak_bytes);
  EXPECT_EQ(read.machine, kPrediction.machine);
  EXPECT_EQ(read.calibration, kPrediction.calibration);
  EXPECT_EQ(read.calibration_checksum, kPrediction.calibration_checksum);
}

TEST(PlanFile, MayBeOfNoMachineInParticular) {
  const std::string text = plan_toml(sample_plan());
  EXPECT_THAT(text, ::testing::Not(HasSubstr("machine =")));
  PlanPrediction read = kPrediction;
  (void)parse_plan(text, "plan.toml", &read);
  EXPECT_EQ(read.machine, "");
}

TEST(PlanFile, IsReadFromDisk) {
  const oom::testing::ScratchFolder folder;
  oom::testing::write_file(folder / "plan.toml", plan_toml(sample_plan()));
  EXPECT_EQ(load_plan(folder / "plan.toml").transfer.windows, 3);
  EXPECT_THROW((void)load_plan(folder / "nowhere.toml"), FileError);
}

struct Edit {
  const char* from;
  const char* to;
  const char* named;  // in the message, with the place of the file
};

class PlanFileEdit : public ::testing::TestWithParam<Edit> {};

TEST_P(PlanFileEdit, IsRefused) {
  const std::string message = message_of(replaced(plan_toml(sample_plan(), kPrediction), GetParam().from, GetParam().to));
  EXPECT_THAT(message, HasSubstr("plan.toml:"));
  EXPECT_THAT(message, HasSubstr(GetParam().named));
}

INSTANTIATE_TEST_SUITE_P(Each, PlanFileEdit,
                         ::testing::Values(Edit{"version = 1", "version = 2", "version"},
                                           Edit{"version = 1", "version = 4294967297", "version"},  // 1 when cut to 32 bits
                                           Edit{"experts = \"local\"", "experts = \"../local\"", "experts"},
                                           Edit{"experts = \"local\"", "", "experts"},
                                           Edit{"device = \"cuda\"", "device = \"tpu\"", "cuda or cpu"},
                                           Edit{"ranks = 2", "ranks = 0", "ranks"},
                                           Edit{"numa_nodes = 2", "numa_nodes = 9", "numa_nodes"},
                                           Edit{"node_of_rank = [1, 0]", "node_of_rank = [1, 2]", "node_of_rank"},
                                           Edit{"node_of_rank = [1, 0]", "node_of_rank = [1]", "each of 2 ranks"},
                                           Edit{"deferred_layers = 3", "deferred_layers = -1", "deferred_layers"},
                                           Edit{"global_batch = 8", "global_batch = 7", "ranks = 2"},
                                           Edit{"compute = \"bf16\"", "compute = \"fp8\"", "bf16 or fp32"},
                                           Edit{"router_aux_loss = 0.001", "router_aux_loss = -0.5", "router_aux_loss"},
                                           Edit{"router_aux_loss = 0.001", "router_aux_loss = nan", "router_aux_loss"},
                                           Edit{"resident_layers = [0, 2]", "resident_layers = [2, 2]", "ascend"},
                                           Edit{"resident_ordinary = \"embedding\"", "resident_ordinary = \"some\"", "\"embedding\" or \"all\""},
                                           Edit{"resident_ordinary = \"embedding\"", "resident_ordinary = true", "\"embedding\" or \"all\""},  // as files had it before
                                           Edit{"ordinary_gradient_slots = 9", "ordinary_gradient_slots = 0", "ordinary_gradient_slots"},
                                           Edit{"retained_feed_forward = [0, 1]", "retained_feed_forward = [1, 0]", "ascend"},
                                           Edit{"retained_attention = [1]", "retained_attention = [-1]", "retained_attention"},
                                           Edit{"windows = 3", "window = 3", "windows"},
                                           Edit{"windows = 3", "windows = 65", "windows"},
                                           Edit{"machine = \"2 x H200\"", "machine = 2", "machine"},
                                           Edit{"h2d_chunk_bytes = 1048576", "h2d_chunk_bytes = 1", "h2d_chunk_bytes"},
                                           Edit{"[settings.local]", "local = 3\n[settings.other]", "local"},
                                           Edit{"delivery = \"full\"", "delivery = {a = 1}", "settings.local.delivery"},
                                           Edit{"step_seconds = 2.25", "step_seconds = \"soon\"", "step_seconds"},
                                           Edit{"step_seconds = 2.25", "step_second = 2.25", "step_seconds"}));

TEST(PlanFile, MismatchNamesEveryDifference) {
  const Plan plan = sample_plan();
  Plan wanted = plan;
  EXPECT_NO_THROW(check_plan_matches(plan, wanted, "plan.toml"));
  wanted.workload.sequence_length = 8192;
  wanted.ranks = 4;
  try {
    check_plan_matches(plan, wanted, "plan.toml");
    FAIL() << "accepted";
  } catch (const FileError& error) {
    EXPECT_THAT(error.what(), HasSubstr("ranks: the plan has 2, this run 4"));
    EXPECT_THAT(error.what(), HasSubstr("sequence_length: the plan has 4096, this run 8192"));
    EXPECT_THAT(error.what(), HasSubstr("allow_plan_mismatch"));
  }
}

}  // namespace
}  // namespace oom::plan
