// Whatever is cut, kept or replayed: the same losses and weights as the uncut run; the same bits where only the place changes.
#include "offload_run.h"

namespace oom::offload {
namespace {

struct Case {
  const char* name;
  Overrides overrides;
};
void PrintTo(const Case& test, std::ostream* out) { *out << test.name; }

class Close : public OffloadRun, public ::testing::WithParamInterface<std::tuple<std::string, Overrides, Case>> {};

TEST_P(Close, ToTheUncutRun) {
  const auto& [family, base, test] = GetParam();
  Overrides overrides = base;
  overrides.insert(overrides.end(), test.overrides.begin(), test.overrides.end());
  expect_close(train(family, overrides), trained_once(family, base));
}

const std::vector<Case>& cuts() {
  static const std::vector<Case> all{
      {"heads_1", {"offload.attention_head_group=1"}},
      {"heads_2", {"offload.attention_head_group=2"}},
      {"heads_3", {"offload.attention_head_group=3"}},
      {"heads_4", {"offload.attention_head_group=4"}},
      {"moe_1", {"offload.moe_chunk=1"}},
      {"moe_33", {"offload.moe_chunk=33"}},
      {"sub_batch_1", {"offload.sub_batch=1"}},
      {"attention_batch", {"offload.attention_batch=50"}},
      {"heads_and_batches", {"offload.attention_head_group=2", "offload.attention_batch=24"}},
      {"kept_heads_and_sub_batches", {"offload.attention_head_group=1", "offload.sub_batch=2", "offload.keep_attention=all", "offload.moe_chunk=17"}},
      {"everything", {"offload.attention_head_group=1", "offload.sub_batch=2", "offload.attention_batch=24", "offload.keep_attention=[1, 3]", "offload.keep_boundaries=3+1", "offload.moe_chunk=17",
                      "offload.regenerate_cap=2", "offload.boundaries_on_gpu=[4]", "offload.buffers=2"}},
      {"some_kept", {"offload.attention_batch=24", "offload.keep_attention=[0, 2]", "offload.keep_boundaries=[0, 3]"}}};
  return all;
}
const std::vector<Overrides>& bases() {
  static const std::vector<Overrides> all{{}, {"engine.ranks=2"}, {"data.documents=isolated"}, {"engine.experts=ep", "engine.ranks=2", "ep.routing_chunk=20"}};
  return all;
}
// Windows of seven tokens: slices shorter and longer than the six that they reach back, and some with a rest.
const std::vector<Case>& window_cuts() {
  static const std::vector<Case> all{{"windows_3", {"offload.attention_chunk=3"}},
                                     {"windows_4", {"offload.attention_chunk=4"}},
                                     {"windows_9", {"offload.attention_chunk=9"}},
                                     {"windows_kept", {"offload.attention_chunk=10", "offload.keep_attention=all"}},
                                     {"windows_and_heads", {"offload.attention_chunk=8", "offload.attention_head_group=1", "offload.sub_batch=2", "offload.keep_attention=[1]", "offload.keep_boundaries=1+1"}}};
  return all;
}
INSTANTIATE_TEST_SUITE_P(Windows, Close, ::testing::Combine(::testing::Values("mixtral", "gemma4"), ::testing::ValuesIn(bases()), ::testing::ValuesIn(window_cuts())),
                         [](const auto& info) {
                           const auto base = std::find(bases().begin(), bases().end(), std::get<1>(info.param)) - bases().begin();
                           return cat(std::get<0>(info.param), "_", base, "_", std::get<2>(info.param).name);
                         });

INSTANTIATE_TEST_SUITE_P(Cuts, Close, ::testing::Combine(::testing::Values("qwen3_moe", "mixtral", "gemma4"), ::testing::ValuesIn(bases()), ::testing::ValuesIn(cuts())),
                         [](const auto& info) {
                           const auto base = std::find(bases().begin(), bases().end(), std::get<1>(info.param)) - bases().begin();
                           return cat(std::get<0>(info.param), "_", base, "_", std::get<2>(info.param).name);
                         });

class Same : public OffloadRun, public ::testing::WithParamInterface<std::tuple<Overrides, Case>> {};

TEST_P(Same, BitsWhereOnlyPlacementDiffers) {
  const auto& [slices, test] = GetParam();
  // What is left open may follow the placement, and other slices are other sums.
  Overrides base{"offload.attention_batch=1048576", "offload.gdn_chunk=1048576", "offload.moe_chunk=1048576", "offload.sub_batch=1024", "offload.attention_head_group=0",
                 "ep.routing_chunk=1048576", "state.resident=none", "state.resident_ordinary=none"};
  base.insert(base.end(), slices.begin(), slices.end());
  Overrides overrides = base;
  overrides.insert(overrides.end(), test.overrides.begin(), test.overrides.end());
  const Outcome outcome = train("qwen3_moe", overrides);
  const Outcome& expected = trained_once("qwen3_moe", base);
  EXPECT_EQ(outcome.losses, expected.losses);
  EXPECT_EQ(outcome.norms, expected.norms);
  EXPECT_TRUE(outcome.weights == expected.weights);
}

INSTANTIATE_TEST_SUITE_P(Placement, Same,
                         ::testing::Combine(::testing::Values(Overrides{}, Overrides{"engine.ranks=2", "offload.attention_head_group=2", "offload.moe_chunk=33"}, Overrides{"engine.experts=ep", "engine.ranks=2"}),
                                            ::testing::Values(Case{"kept", {"offload.keep_attention=all"}}, Case{"some_kept", {"offload.keep_attention=[1, 2, 6]"}},
                                                              Case{"on_gpu", {"offload.boundaries_on_gpu=[0, 2, 3, 8]"}}, Case{"two_buffers", {"offload.buffers=2", "offload.keep_attention=all"}},
                                                              Case{"one_buffer", {"offload.buffers=1", "offload.keep_attention=all", "transfer.windows=1"}},
                                                              Case{"one_buffer_one_in_four", {"offload.buffers=1", "offload.keep_boundaries=3+1", "offload.regenerate_cap=1",
                                                                                              "offload.boundaries_on_gpu=[4]"}},
                                                              Case{"one_buffer_cap_2", {"offload.buffers=1", "offload.keep_boundaries=3+1", "offload.regenerate_cap=2", "offload.keep_attention=[3, 5]"}},
                                                              Case{"one_in_two", {"offload.keep_boundaries=1+1"}}, Case{"one_in_four", {"offload.keep_boundaries=3+1", "offload.regenerate_cap=1"}},
                                                              Case{"one_in_four_cap_2", {"offload.keep_boundaries=3+1", "offload.regenerate_cap=2", "offload.keep_attention=all"}},
                                                              Case{"one_in_six_cap_3", {"offload.keep_boundaries=5+1", "offload.regenerate_cap=3", "offload.buffers=2"}},
                                                              Case{"a_set", {"offload.keep_boundaries=[1, 5, 6]", "offload.boundaries_on_gpu=[1]", "offload.keep_attention=[3]"}},
                                                              Case{"first_alone", {"offload.keep_boundaries=[]", "transfer.windows=1"}})),
                         [](const auto& info) { return cat(std::get<0>(info.param).size(), "_", std::get<1>(info.param).name); });

// Regenerated from the plan file as it was written.
TEST_F(OffloadRun, ResolvedSettingsAreReadBack) {
  const runtime::PlannedRun planned = plan("qwen3_moe", {"offload.keep_boundaries=3+1", "offload.keep_attention=[2, 5]", "offload.moe_chunk=33"});
  const auto& table = planned.plan.settings.at("offload");
  EXPECT_EQ(table.at("keep_boundaries"), "[0, 4, 8]");
  EXPECT_EQ(table.at("keep_attention"), "[2, 5]");
  EXPECT_EQ(table.at("moe_chunk"), "33");
  EXPECT_EQ(table.at("attention_head_group"), "0");
  EXPECT_EQ(table.at("regenerate_cap"), "3");
}

}  // namespace
}  // namespace oom::offload
