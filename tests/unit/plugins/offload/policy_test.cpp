// What settings mean, and which cannot be used.
#include "../../../../plugins/offload/policy.h"
#include "../../../../plugins/offload/planner/alternatives.h"
#include "../../../../plugins/offload/planner/partition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace oom::offload {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PolicyTest : public ::testing::Test {
 protected:
  PolicyTest() {
    model_.layers = {{"linear_attention", "moe"}, {"linear_attention", "moe"}, {"linear_attention", "moe"}, {"full_attention", "moe"},
                     {"linear_attention", "moe"}, {"sliding_attention", "moe"}};
    plan_.ranks = 2;
    plan_.workload.sequence_length = 100;
    plan_.workload.global_batch = 8;
  }
  Policy resolve(const std::string& toml) const { return resolve_policy(parse_settings(offload_schema(), toml, "a.toml"), model_, plan_); }
  std::vector<int> where(const Policy& policy, Boundary place) const {
    std::vector<int> layers;
    for (int layer = 0; layer < 6; ++layer) {
      if (policy.layers[layer].boundary == place) layers.push_back(layer);
    }
    return layers;
  }
  std::string fault(const std::string& toml) const {
    try {
      resolve(toml);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return {};
  }

  ModelDescription model_;
  Plan plan_;
};

TEST_F(PolicyTest, AutomaticIsWhole) {
  const Policy policy = resolve("");
  EXPECT_EQ(policy.head_group, 0);
  EXPECT_EQ(policy.moe_chunk, 400);
  EXPECT_EQ(policy.sub_batch, 4);
  EXPECT_THAT(where(policy, Boundary::kHost), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_FALSE(policy.layers[3].keep_attention);
}

TEST_F(PolicyTest, BoundarySets) {
  EXPECT_THAT(where(resolve("keep_boundaries = \"1+1\""), Boundary::kHost), ElementsAre(0, 2, 4));
  EXPECT_THAT(where(resolve("keep_boundaries = \"3+1\""), Boundary::kHost), ElementsAre(0, 4));
  EXPECT_EQ(resolve("keep_boundaries = \"3+1\"").regenerate_cap, 3);
  EXPECT_EQ(resolve("keep_boundaries = \"3+1\"\nregenerate_cap = 2").regenerate_cap, 2);
  const Policy list = resolve("keep_boundaries = [2, 3]\nboundaries_on_gpu = [3]");
  EXPECT_THAT(where(list, Boundary::kHost), ElementsAre(0, 2));  // the first is always there
  EXPECT_THAT(where(list, Boundary::kGpu), ElementsAre(3));
}

TEST_F(PolicyTest, KeepAllMeansLayersThatAttend) {
  const Policy policy = resolve("keep_attention = \"all\"");
  for (int layer = 0; layer < 6; ++layer) EXPECT_EQ(policy.layers[layer].keep_attention, layer == 3 || layer == 5) << layer;
}

TEST_F(PolicyTest, SlicesOfWindowsNeedWindows) {
  EXPECT_EQ(resolve("attention_chunk = 7").attention_chunk, 7);
  EXPECT_EQ(resolve("").attention_chunk, 400);
  model_.layers.back().mixer = "full_attention";
  EXPECT_THAT(fault("attention_chunk = 7"), AllOf(HasSubstr("attention_chunk"), HasSubstr("attention_head_group")));
  EXPECT_EQ(fault("attention_chunk = 100"), "");
}

TEST_F(PolicyTest, EverySizeIsAtMostWhatThereIs) {
  const Policy policy = resolve("attention_chunk = 1000\nmoe_chunk = 1000\nsub_batch = 9\nattention_batch = 900\ngdn_chunk = 5000");
  EXPECT_EQ(policy.moe_chunk, 400);
  EXPECT_EQ(policy.sub_batch, 4);
  EXPECT_EQ(policy.attention_batch, 400);
  EXPECT_EQ(policy.attention_chunk, 400);
  EXPECT_EQ(policy.gdn_chunk, 400);
}

TEST_F(PolicyTest, FaultsNamePlaceValueAndChoices) {
  EXPECT_THAT(fault("keep_attention = [3, 4]"), AllOf(HasSubstr("keep_attention"), HasSubstr("layer 4"), HasSubstr("[3, 5]")));
  EXPECT_THAT(fault("keep_boundaries = \"1+1\"\nboundaries_on_gpu = [1]"), AllOf(HasSubstr("boundaries_on_gpu"), HasSubstr("layer 1"), HasSubstr("[0, 2, 4]")));
  EXPECT_THAT(fault("attention_batch = 50"), AllOf(HasSubstr("attention_batch"), HasSubstr("100 tokens")));
  EXPECT_THAT(fault("keep_boundaries = \"6+1\""), AllOf(HasSubstr("6 layers"), HasSubstr("6+1")));
  EXPECT_THAT(fault("gdn_chunk = 70"), AllOf(HasSubstr("gdn_chunk"), HasSubstr("multiple of 64"), HasSubstr("64, 128")));
  EXPECT_EQ(fault("gdn_chunk = 64"), "");
  EXPECT_EQ(fault("gdn_chunk = 130"), "");  // whole sequences
  EXPECT_THAT(fault("keep_boundaries = [7]"), HasSubstr("7"));
}

TEST_F(PolicyTest, AllFaultsAtOnce) {
  const std::string text = fault("keep_attention = [0]\nattention_batch = 1\nkeep_boundaries = [9]");
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;
}

TEST_F(PolicyTest, RetainedLayersComeFromThePlan) {
  plan_.retained_feed_forward = {1, 2};
  plan_.retained_attention = {2, 3};
  const char* regenerated = "keep_boundaries = \"3+1\"\nkeep_attention = \"all\"";
  const Policy policy = resolve(regenerated);
  for (int layer = 0; layer < 6; ++layer) {
    EXPECT_EQ(policy.layers[layer].retain_feed_forward, layer == 1 || layer == 2) << layer;
    EXPECT_EQ(policy.layers[layer].retain_attention, layer == 2 || layer == 3) << layer;
    EXPECT_EQ(policy.layers[layer].regenerates(), layer == 1 || layer == 5) << layer;
    EXPECT_EQ(policy.layers[layer].keeps_results(), layer == 5) << layer;
  }
  // Not part of the settings: another set of retained layers needs no other table.
  const auto table = settings_of(policy);
  plan_.retained_attention = {};
  EXPECT_EQ(settings_of(resolve(regenerated)), table);
}

TEST_F(PolicyTest, RetainedAttentionIsNotCut) {
  plan_.retained_attention = {2, 3};
  EXPECT_THAT(fault("attention_head_group = 2"), AllOf(HasSubstr("attention_head_group"), HasSubstr("[3]"), HasSubstr("got 2"), HasSubstr("cure: 0")));
  EXPECT_THAT(fault("gdn_chunk = 64"), AllOf(HasSubstr("gdn_chunk"), HasSubstr("[2]"), HasSubstr("got 64"), HasSubstr("cure: 400")));
  EXPECT_THAT(fault("sub_batch = 3"), AllOf(HasSubstr("sub_batch"), HasSubstr("[2, 3]"), HasSubstr("cure: 4")));
  EXPECT_EQ(fault("moe_chunk = 10"), "");
}

TEST_F(PolicyTest, PartitionsLeaveRetainedAttentionWhole) {
  const auto cuts = [&] {
    const SettingsTable open = parse_settings(offload_schema(), "");
    int whole = 0, cut = 0;
    for (const Policy& policy : partitions(open, model_, plan_, resolve_policy(open, model_, plan_))) ++(policy.head_group > 0 || policy.sub_batch < 4 || policy.attention_batch < 400 ? cut : whole);
    return std::pair(whole, cut);
  };
  const auto [whole, cut] = cuts();
  EXPECT_GT(cut, 0);
  plan_.retained_attention = {3};
  EXPECT_EQ(cuts(), std::pair(whole, 0));
}

// Every size by itself, to the next smaller and the next larger one; the user's stay.
TEST_F(PolicyTest, NeighboursDifferInOneSize) {
  plan_.workload.sequence_length = 65536;
  const auto sizes = [](const Policy& policy) {
    return std::vector<int64_t>{policy.head_group, policy.attention_chunk, policy.gdn_chunk, policy.moe_chunk, policy.attention_batch, policy.sub_batch};
  };
  const SettingsTable open = parse_settings(offload_schema(), "");
  const Policy whole = resolve_policy(open, model_, plan_);
  Policy from = whole;
  from.head_group = 4;
  from.sub_batch = 2;
  from.moe_chunk = from.gdn_chunk = from.attention_chunk = 16384;
  from.attention_batch = 65536;
  std::vector<std::vector<int64_t>> changes(6);
  for (const Policy& policy : neighbours(open, model_, plan_, whole, from)) {
    std::vector<size_t> changed;
    for (size_t i = 0; i < 6; ++i) {
      if (sizes(policy)[i] != sizes(from)[i]) changed.push_back(i);
    }
    ASSERT_EQ(changed.size(), 1u);
    changes[changed.front()].push_back(sizes(policy)[changed.front()]);
  }
  EXPECT_THAT(changes, ElementsAre(ElementsAre(8, 2), ElementsAre(32768, 8192), ElementsAre(32768, 8192), ElementsAre(32768, 8192), ElementsAre(131072), ElementsAre(4, 1)));
  for (const Policy& policy : neighbours(open, model_, plan_, whole, whole)) EXPECT_NE(sizes(policy), sizes(whole));
  const SettingsTable given = parse_settings(offload_schema(), "attention_head_group = 4\nmoe_chunk = 16384");
  for (const Policy& policy : neighbours(given, model_, plan_, resolve_policy(given, model_, plan_), from)) {
    EXPECT_EQ(policy.head_group, 4);
    EXPECT_EQ(policy.moe_chunk, 16384);
  }
}

TEST_F(PolicyTest, WindowsAreCutBySequence) {
  plan_.workload.sequence_length = 65536;
  plan_.settings["offload"] = settings_of(resolve(""));
  const SettingsTable open = parse_settings(offload_schema(), "");
  const auto cut = [&](const auto& policies, auto policy) { return std::count_if(policies.begin(), policies.end(), [&](const auto& each) { return policy(each).attention_chunk < 65536; }); };
  const auto of_table = [&](const std::map<std::string, std::string>& table) {
    Plan plan = plan_;
    plan.settings["offload"] = table;
    return policy_of(model_, plan);
  };
  EXPECT_GT(cut(partitions(open, model_, plan_, resolve("")), [](const Policy& policy) { return policy; }), 0);
  EXPECT_GT(cut(alternatives(open, model_, plan_), of_table), 0);
  model_.layers[5].mixer = "full_attention";
  EXPECT_EQ(cut(partitions(open, model_, plan_, resolve("")), [](const Policy& policy) { return policy; }), 0);
  const auto tables = alternatives(open, model_, plan_);
  EXPECT_EQ(cut(tables, of_table), 0);
  // Groups of heads with their results kept, and every other input, or five of six, regenerated.
  for (const char* kept : {"[0, 2, 4]", "[0]"}) {
    EXPECT_TRUE(std::any_of(tables.begin(), tables.end(), [&](const auto& table) {
      return table.at("keep_boundaries") == kept && table.at("attention_head_group") == "4" && table.at("keep_attention") == "[3, 5]";
    })) << kept;
  }
}

TEST_F(PolicyTest, AResolvedTableIsItsOwnResolution) {
  for (const char* toml : {"", "keep_boundaries = [1, 4]\nboundaries_on_gpu = [4]\nkeep_attention = [5]\nregenerate_cap = 1\nmoe_chunk = 7\nattention_head_group = 3\nsub_batch = 1\nbuffers = 2", "buffers = 1"}) {
    Plan plan = plan_;
    plan.settings["offload"] = settings_of(resolve(toml));
    EXPECT_EQ(settings_of(policy_of(model_, plan)), plan.settings["offload"]) << toml;
  }
}

}  // namespace
}  // namespace oom::offload
