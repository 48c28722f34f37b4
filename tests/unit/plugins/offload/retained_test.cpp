// Layers that retain: what they leave on the GPU, and that no bit of a step shows it, whatever else is cut, kept or regenerated.
#include <algorithm>

#include "offload_run.h"

namespace oom::offload {
namespace {

struct Case {
  const char* name;
  const char* family;
  Overrides overrides;
  std::vector<int> feed_forward, attention;
};
void PrintTo(const Case& test, std::ostream* out) { *out << test.name; }

class Retaining : public OffloadRun, public ::testing::WithParamInterface<Case> {};

TEST_P(Retaining, ChangesNoBit) {
  const Case& test = GetParam();
  Overrides overrides = test.overrides;
  overrides.push_back("engine.ranks=2");
  expect_same(train(test.family, overrides, {test.feed_forward, test.attention}), trained_once(test.family, overrides));
}

const std::vector<int> kAll9{0, 1, 2, 3, 4, 5, 6, 7, 8}, kAll6{0, 1, 2, 3, 4, 5}, kAll5{0, 1, 2, 3, 4};

INSTANTIATE_TEST_SUITE_P(
    Plans, Retaining,
    ::testing::Values(
        Case{"feed_forward", "qwen3_moe", {}, kAll9, {}}, Case{"attention", "qwen3_moe", {}, {}, kAll9}, Case{"both", "qwen3_moe", {}, kAll9, kAll9},
        Case{"some", "qwen3_moe", {"data.documents=isolated"}, {1, 2, 6, 8}, {0, 2, 5, 8}}, Case{"deferred", "qwen3_moe", {"train.updates=deferred", "train.clip_norm=0.5"}, {3, 4}, {4, 5}},
        Case{"slices", "qwen3_moe", {"offload.moe_chunk=33"}, {0, 4, 8}, {0, 3, 8}},
        Case{"heads_and_sub_batches", "qwen3_moe", {"offload.attention_head_group=2", "offload.sub_batch=2", "offload.moe_chunk=17", "offload.keep_attention=[1, 2]"}, {1, 3, 7}, {}},
        Case{"kept", "qwen3_moe", {"offload.keep_attention=all", "offload.buffers=2"}, {2, 3}, {1, 2}},
        Case{"regenerated", "qwen3_moe", {"offload.keep_boundaries=3+1", "offload.regenerate_cap=1", "offload.keep_attention=[4, 5]"}, {1, 5, 6}, {2, 4, 5}},
        Case{"regenerated_from_retained", "qwen3_moe", {"offload.keep_boundaries=[]", "offload.buffers=2", "transfer.windows=1"}, {3}, {3, 5}},
        Case{"boundaries_on_gpu", "qwen3_moe", {"offload.boundaries_on_gpu=[0, 2, 8]"}, {0, 1}, {2, 3}},
        Case{"ep", "qwen3_moe", {"engine.experts=ep", "offload.keep_boundaries=1+1", "ep.routing_chunk=20"}, {0, 3, 4, 8}, {3, 5, 8}},
        Case{"mixtral", "mixtral", {"offload.moe_chunk=40"}, kAll5, {1, 2}},
        Case{"gemma4", "gemma4", {"offload.keep_boundaries=1+1"}, {0, 1, 4, 5}, {1, 4, 5}}, Case{"gemma4_whole", "gemma4", {"offload.moe_chunk=50"}, kAll6, kAll6},
        Case{"gemma4_ep", "gemma4", {"engine.experts=ep"}, {1, 2, 5}, kAll6}),
    [](const auto& info) { return info.param.name; });

class RetainingProgram : public OffloadRun {
 protected:
  static int count(const Program& program, const std::string& kind, int layer) {
    return static_cast<int>(std::count_if(program.stages.begin(), program.stages.end(), [&](const Stage& stage) { return program.kinds[stage.kind] == kind && stage.layer == layer; }));
  }
  static int64_t retained_bytes(const runtime::PlannedRun& run) { return run.account.gpus.front().at_peak[static_cast<size_t>(BufferClass::kRetained)]; }
  std::string fault(const Overrides& overrides) {
    try {
      (void)plan("qwen3_moe", overrides);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return {};
  }
};

TEST_F(RetainingProgram, ReplaysAndFetchesOnlyWhatIsNotThere) {
  const runtime::PlannedRun run = plan("qwen3_moe", {"engine.experts=ep", "engine.ranks=2", "ep.retain=[1, 2]", "ep.retain_attention=[2, 3]"});
  for (int layer = 0; layer < 5; ++layer) {
    const bool feed_forward = layer == 1 || layer == 2, attention = layer == 2 || layer == 3;
    EXPECT_EQ(count(run.program, "router_replay", layer), feed_forward ? 0 : 2) << layer;
    EXPECT_EQ(count(run.program, "experts_order", layer), feed_forward ? 2 : 4) << layer;
    EXPECT_EQ(count(run.program, "mixer_replay", layer), attention ? 0 : 2) << layer;
    EXPECT_EQ(count(run.program, "boundary_out", layer), attention ? 0 : 2) << layer;
    EXPECT_EQ(count(run.program, "boundary_in", layer), attention ? 0 : 2) << layer;
    EXPECT_EQ(count(run.program, "mixer_forward", layer), 2) << layer;
    EXPECT_EQ(count(run.program, "counts_meet", layer), 2) << layer;
  }
}

// A layer's tokens are bound for the experts once: their gradients travel alone.
TEST_F(RetainingProgram, SendsNoInputsAgain) {
  const auto sent = [](const runtime::PlannedRun& run, int layer) {
    double bytes = 0;
    for (const Stage& stage : run.program.stages) bytes += run.program.kinds[stage.kind] == "experts_dispatch" && stage.layer == layer ? stage.cost.peer_bytes : 0;
    return bytes;
  };
  const runtime::PlannedRun run = plan("qwen3_moe", {"engine.experts=ep", "engine.ranks=2", "ep.retain=[1]"});
  EXPECT_DOUBLE_EQ(sent(run, 1), sent(run, 2) * 2 / 3);
}

TEST_F(RetainingProgram, IsPricedInItsClass) {
  const Overrides ep{"engine.experts=ep", "engine.ranks=2"};
  const auto with = [&](const Overrides& more) {
    Overrides all = ep;
    all.insert(all.end(), more.begin(), more.end());
    return retained_bytes(plan("qwen3_moe", all));
  };
  EXPECT_EQ(with({}), 0);
  const int64_t one = with({"ep.retain=1"}), all = with({"ep.retain=all"}), attention = with({"ep.retain_attention=all"});
  EXPECT_EQ(all, 9 * one);
  // Owners keep their capacity of rows, X and Z; sources the normed input, the order and the logits of the router.
  const int64_t tokens = kBatch / 2 * length_of("qwen3_moe"), rows = tokens * 2 * 5 / 4;
  EXPECT_EQ(one, rows * ((64 + 2 * 32) * 4 + 8) + tokens * ((64 + 8) * 4 + 4) + tokens * 2 * 8);
  EXPECT_EQ(with({"ep.retain=1", "ep.retain_rows=10"}), one - (rows - 10) * ((64 + 2 * 32) * 4 + 8));
  EXPECT_EQ(with({"ep.retain=all", "ep.retain_attention=all"}), all + attention);
}

TEST_F(RetainingProgram, CutAttentionIsRefused) {
  const Overrides base{"engine.experts=ep", "engine.ranks=2", "ep.retain_attention=[0, 7]"};
  for (const auto& [cut, words] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"offload.attention_head_group=2", {"attention_head_group", "[0, 7]", "got 2", "cure: 0", "retain_attention"}},
           {"offload.attention_batch=24", {"attention_batch", "[0, 7]", "got 24", "cure: 72"}},
           {"offload.sub_batch=1", {"sub_batch", "[0, 7]", "got 1", "cure: 3"}}}) {
    Overrides overrides = base;
    overrides.push_back(cut);
    const std::string text = fault(overrides);
    for (const std::string& word : words) EXPECT_THAT(text, ::testing::HasSubstr(word)) << cut;
  }
  EXPECT_THAT(fault({"engine.experts=ep", "ep.retain=[9]"}), ::testing::HasSubstr("ep.retain"));
}

}  // namespace
}  // namespace oom::offload
