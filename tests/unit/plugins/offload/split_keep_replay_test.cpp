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

class Same : public OffloadRun, public ::testing::WithParamInterface<std::tuple<std::string, Overrides, Case>> {};

TEST_P(Same, BitsWhereOnlyPlacementDiffers) {
  const auto& [family, slices, test] = GetParam();
  Overrides overrides = slices;
  overrides.insert(overrides.end(), test.overrides.begin(), test.overrides.end());
  expect_same(train(family, overrides), trained_once(family, slices));
}

const auto name_of_same = [](const auto& info) { return cat(std::get<0>(info.param), "_", std::get<1>(info.param).size(), "_", std::get<2>(info.param).name); };
const Overrides kTwoOwners{"engine.experts=ep", "engine.ranks=2"};

INSTANTIATE_TEST_SUITE_P(Placement, Same,
                         ::testing::Combine(::testing::Values("qwen3_moe"), ::testing::Values(Overrides{}, Overrides{"engine.ranks=2", "offload.attention_head_group=2", "offload.moe_chunk=33"}, kTwoOwners),
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
                         name_of_same);

// Families that mix layers: the other patterns of placement that they are run with, and below, sets of layers at random.
const std::vector<Case>& placements() {
  static const std::vector<Case> all{{"kept", {"offload.keep_attention=all"}},
                                     {"on_gpu", {"offload.boundaries_on_gpu=[0, 2, 3]"}},
                                     {"one_in_two", {"offload.keep_boundaries=1+1", "offload.buffers=2"}},
                                     {"one_buffer_one_in_four", {"offload.buffers=1", "offload.keep_boundaries=3+1", "offload.regenerate_cap=1", "offload.boundaries_on_gpu=[4]"}},
                                     {"first_alone", {"offload.keep_boundaries=[]", "offload.regenerate_cap=2", "offload.keep_attention=all", "transfer.windows=1"}}};
  return all;
}
INSTANTIATE_TEST_SUITE_P(MixedLayers, Same,
                         ::testing::Combine(::testing::Values("qwen3_5_moe"),
                                            ::testing::Values(Overrides{}, Overrides{"engine.ranks=2", "offload.attention_head_group=1", "offload.moe_chunk=33", "offload.gdn_chunk=64"}, kTwoOwners),
                                            ::testing::ValuesIn(placements())),
                         name_of_same);
INSTANTIATE_TEST_SUITE_P(Windows, Same,
                         ::testing::Combine(::testing::Values("gemma4"),
                                            ::testing::Values(Overrides{}, Overrides{"engine.ranks=2", "offload.attention_head_group=1", "offload.moe_chunk=33", "offload.attention_chunk=5"}, kTwoOwners),
                                            ::testing::ValuesIn(placements())),
                         name_of_same);

// The input of every layer on the host, on the GPU or regenerated, the results of every layer that attends kept or not, halves of any layers retained: all drawn, beside slices of every
// axis. Not a bit of it shows.
class RandomSets : public OffloadRun, public ::testing::WithParamInterface<std::tuple<std::string, Overrides, int>> {
 protected:
  struct Drawn {
    Overrides overrides;
    Retained retained;
  };
  static std::string list(const std::vector<int>& layers) {
    std::string text;
    for (const int layer : layers) text += cat(text.empty() ? "" : ", ", layer);
    return cat("[", text, "]");
  }
  Drawn draw(const std::string& family, bool cuts_attention, unsigned seed) {
    std::mt19937 random(seed);
    const auto one_in = [&](unsigned n) { return random() % n == 0; };
    runtime::Session session(write_run(family), {});
    const ModelDescription& model = session.model().description;
    std::vector<int> stored, on_gpu, kept;
    Drawn drawn;
    for (int layer = 0; layer < static_cast<int>(model.layers.size()); ++layer) {
      if (layer == 0 || one_in(2)) stored.push_back(layer);
      if (!stored.empty() && stored.back() == layer && one_in(2)) on_gpu.push_back(layer);
      if (model.layers[layer].mixer != "linear_attention" && one_in(2)) kept.push_back(layer);
      if (one_in(4)) drawn.retained.feed_forward.push_back(layer);
      if (!cuts_attention && one_in(4)) drawn.retained.attention.push_back(layer);
    }
    drawn.overrides = {cat("offload.keep_boundaries=", list(stored)), cat("offload.boundaries_on_gpu=", list(on_gpu)), cat("offload.keep_attention=", list(kept)),
                       cat("offload.regenerate_cap=", 1 + random() % 3), cat("offload.buffers=", 1 + random() % 3), cat("transfer.windows=", 1 + random() % 2)};
    return drawn;
  }
};

const std::vector<Overrides>& slices_of(const std::string& family) {
  static const std::map<std::string, std::vector<Overrides>> all{
      {"qwen3_5_moe", {{}, {"offload.gdn_chunk=64", "offload.attention_head_group=1"}, {"offload.gdn_chunk=128", "offload.moe_chunk=33", "offload.sub_batch=1", "offload.attention_head_group=2"}}},
      {"gemma4", {{}, {"offload.attention_chunk=5", "offload.attention_head_group=1"}, {"offload.attention_chunk=16", "offload.moe_chunk=33", "offload.sub_batch=1", "offload.attention_head_group=2"}}}};
  return all.at(family);
}
constexpr int kDraws = 2, kSetSteps = 2;

TEST_P(RandomSets, ChangeNoBit) {
  const auto& [family, ranks, which] = GetParam();
  Overrides slices = slices_of(family)[which];
  slices.insert(slices.end(), ranks.begin(), ranks.end());
  const Outcome& expected = trained_once(family, slices, kSetSteps);
  expect_close(expected, trained_once(family, {}, kSetSteps));
  for (unsigned seed = 0; seed < kDraws; ++seed) {
    const Drawn drawn = draw(family, which > 0, 100 * which + seed);
    SCOPED_TRACE(cat(::testing::PrintToString(drawn.overrides), " retained ", list(drawn.retained.feed_forward), " ", list(drawn.retained.attention)));
    Overrides overrides = slices;
    overrides.insert(overrides.end(), drawn.overrides.begin(), drawn.overrides.end());
    expect_same(train(family, overrides, drawn.retained, kSetSteps), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, RandomSets,
                         ::testing::Combine(::testing::Values("qwen3_5_moe", "gemma4"), ::testing::Values(Overrides{}, Overrides{"engine.ranks=2"}, Overrides{"engine.ranks=2", "engine.experts=ep", "ep.routing_chunk=20"}),
                                            ::testing::Range(0, 3)),
                         [](const auto& info) {
                           const size_t ranks = std::get<1>(info.param).size();
                           return cat(std::get<0>(info.param), ranks == 0 ? "_one_rank_" : ranks == 1 ? "_two_ranks_" : "_ep_", std::get<2>(info.param));
                         });

// What the other tests compare with is what it is called, whatever the planner would choose of it.
TEST_F(OffloadRun, TheReferenceIsUncut) {
  for (const auto& [family, config] : models()) {
    for (Overrides overrides : bases()) {
      const std::string which = cat(family, " ", ::testing::PrintToString(overrides));
      const runtime::PlannedRun run = plan(family, overrides);
      const std::map<std::string, std::string>& table = run.plan.settings.at("offload");
      EXPECT_EQ(table.at("attention_head_group"), "0") << which;
      for (const char* tokens : {"attention_chunk", "gdn_chunk", "moe_chunk", "attention_batch"}) EXPECT_EQ(table.at(tokens), cat(run.plan.tokens_per_rank())) << which << tokens;
      EXPECT_EQ(table.at("sub_batch"), cat(run.plan.sequences_per_rank())) << which;
      EXPECT_EQ(table.at("keep_attention"), "[]") << which;
      EXPECT_EQ(table.at("keep_boundaries"), "\"all\"") << which;
      EXPECT_EQ(table.at("boundaries_on_gpu"), "[]") << which;
    }
  }
}

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
