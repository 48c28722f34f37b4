#include "runtime/residency.h"

#include <gmock/gmock.h>

#include <numeric>

#include "planner_fixture.h"
#include "runtime/path_runs.h"

namespace oom::runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using config::Placement;

TEST(Residency, InterleavedLayersAreSpreadEvenly) {
  EXPECT_THAT(place_resident(12, 40, Placement::kInterleaved), ElementsAre(0, 1, 3, 7, 11, 15, 19, 22, 26, 30, 34, 38));
  EXPECT_THAT(place_resident(1, 40, Placement::kInterleaved), ElementsAre(0));
  EXPECT_THAT(place_resident(2, 40, Placement::kInterleaved), ElementsAre(0, 1));
  EXPECT_THAT(place_resident(3, 12, Placement::kInterleaved), ElementsAre(0, 1, 7));
}

TEST(Residency, ContiguousLayersAreTheFirst) { EXPECT_THAT(place_resident(4, 40, Placement::kContiguous), ElementsAre(0, 1, 2, 3)); }

TEST(Residency, EveryCountNamesSoManyLayers) {
  for (int layers = 1; layers <= 64; ++layers) {
    for (int count = 0; count <= layers; ++count) {
      const std::vector<int> chosen = place_resident(count, layers, Placement::kInterleaved);
      ASSERT_EQ(static_cast<int>(chosen.size()), count);
      for (int i = 1; i < count; ++i) ASSERT_LT(chosen[i - 1], chosen[i]) << count << " of " << layers;
      if (count > 0) {
        ASSERT_LT(chosen.back(), layers);
      }
    }
  }
}

class StatedResidency : public Planner {};

TEST_F(StatedResidency, IsReadFromTheConfiguration) {
  EXPECT_THAT(fitting({"state.resident=all"}).plan.resident_layers, ElementsAre(0, 1, 2));
  EXPECT_THAT(fitting({"state.resident=[2, 0]"}).plan.resident_layers, ElementsAre(0, 2));
  EXPECT_THAT(fitting({"state.resident=2", "state.placement=contiguous"}).plan.resident_layers, ElementsAre(0, 1));
  EXPECT_TRUE(fitting({"state.resident=none"}).plan.resident_layers.empty());
  EXPECT_EQ(fitting({"state.resident_ordinary=all"}).plan.resident_ordinary, OrdinaryResidency::kAll);
  EXPECT_TRUE(fitting({"state.resident_weights=cached"}).plan.resident_cached_weights);
  EXPECT_FALSE(fitting({"state.weights=convert"}).plan.cached_weights);
  EXPECT_FALSE(fitting({"transfer.gradient_reduction=host"}).plan.transfer.reduce_on_gpu);
}

TEST_F(StatedResidency, LayersThatAreNotThereAreRefused) {
  for (const char* wrong : {"state.resident=4", "state.resident=[3]", "state.resident=[0, 17]"}) {
    try {
      (void)plan({wrong});
      ADD_FAILURE() << wrong << " was accepted";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("state.resident"));
      EXPECT_THAT(error.what(), HasSubstr("3"));
    }
  }
}

// Layers wide enough that their updates take longer than launching their kernels.
class StateSearch : public Planner {
 protected:
  StateSearch() {
    oom::testing::write_file(folder_ / "model/config.json",
                             R"({"model_type": "qwen3_moe", "vocab_size": 160, "hidden_size": 512, "intermediate_size": 96, "moe_intermediate_size": 1024,
"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "hidden_act": "silu", "max_position_embeddings": 256,
"rms_norm_eps": 1e-6, "rope_theta": 1e6, "num_experts": 16, "num_experts_per_tok": 4, "norm_topk_prob": true, "tie_word_embeddings": false, "initializer_range": 0.08})");
  }
  static std::vector<std::string> on_gpus(int64_t bytes, std::vector<std::string> more = {}) {
    more.insert(more.end(), {"engine.device=cuda", cat("budget.gpu=", bytes), "budget.headroom=0", "train.updates=overlapped"});
    return more;
  }
  static int64_t peak(const PlannedRun& run) { return std::max(run.account.gpus.at(0).peak_bytes, run.account.gpus.at(1).peak_bytes); }
  static constexpr int64_t kPlenty = int64_t{8} << 30;
};

// Everything fits, so everything is resident: no update on the host is as fast.
TEST_F(StateSearch, TakesWhatFits) {
  const PlannedRun all = fitting(on_gpus(kPlenty));
  EXPECT_THAT(all.plan.resident_layers, ElementsAre(0, 1, 2));
  EXPECT_EQ(all.plan.resident_ordinary, OrdinaryResidency::kAll);
  EXPECT_THAT(all.evidence, HasSubstr("plans tried"));
}

// The largest count that fits, to the byte.
TEST_F(StateSearch, CountsTheLayersThatFit) {
  const auto with = [&](int64_t bytes) { return fitting(on_gpus(bytes, {"state.resident_ordinary=none"})).plan.resident_layers.size(); };
  for (const int count : {1, 2, 3}) {
    const int64_t needed = peak(fitting(on_gpus(kPlenty, {"state.resident_ordinary=none", cat("state.resident=", count)})));
    EXPECT_EQ(with(needed), static_cast<size_t>(count));
    EXPECT_EQ(with(needed - 1), static_cast<size_t>(count - 1));
  }
}

TEST_F(StateSearch, StatedChoicesStay) {
  EXPECT_TRUE(fitting(on_gpus(kPlenty, {"state.resident=none"})).plan.resident_layers.empty());
  EXPECT_EQ(fitting(on_gpus(kPlenty, {"state.resident_ordinary=none"})).plan.resident_ordinary, OrdinaryResidency::kNone);
  EXPECT_TRUE(fitting(on_gpus(kPlenty, {"state.resident=none", "state.resident_ordinary=none", "state.weights=cached"})).plan.cached_weights);
}

// Working weights are made at delivery where the host's budget has no room for copies of them, and only there.
TEST_F(StateSearch, ConvertsWhereTheHostIsShort) {
  const std::vector<std::string> streamed{"state.resident=none", "state.resident_ordinary=none"};
  const PlannedRun roomy = fitting(on_gpus(kPlenty, streamed));
  EXPECT_TRUE(roomy.plan.cached_weights);
  const auto with_host = [&](int64_t bytes) {
    std::vector<std::string> settings = streamed;
    settings.push_back(cat("budget.host=[", bytes, "]"));
    return plan(on_gpus(kPlenty, settings));
  };
  const int64_t needed = fitting(on_gpus(kPlenty, {"state.resident=none", "state.resident_ordinary=none", "budget.host=[\"8GiB\"]"})).account.nodes.at(0).peak_bytes;
  EXPECT_TRUE(with_host(needed).run->plan.cached_weights);
  const PlanAnswer tight = with_host(needed - 1);
  ASSERT_TRUE(tight.run) << tight.refusal.why;
  EXPECT_FALSE(tight.run->plan.cached_weights);
}

// On the CPU device all places are host memory.
TEST_F(StateSearch, KeepsStateOnTheHostOfTheCpuDevice) {
  const PlannedRun run = fitting({"budget.gpu=\"4GiB\""});
  EXPECT_TRUE(run.plan.resident_layers.empty());
  EXPECT_EQ(run.plan.resident_ordinary, OrdinaryResidency::kNone);
}

TEST_F(StateSearch, RefusalNamesTheLayersThatFit) {
  const auto with = [](const char* resident) {
    return std::vector<std::string>{"state.resident_ordinary=none", "state.weights=cached", "transfer.windows=1", "transfer.gradient_slots=1", cat("state.resident=", resident)};
  };
  const PlanAnswer answer = plan(on_gpus(peak(fitting(on_gpus(kPlenty, with("2")))), with("all")));
  ASSERT_FALSE(answer.run);
  ASSERT_TRUE(answer.refusal.nearest.fits) << answer.refusal.nearest.describe();
  EXPECT_THAT(answer.refusal.nearest.describe(), HasSubstr("state.resident=2"));
}

// A short model's sets lie in its depth as the whole one's do.
TEST(SpreadAs, FollowsTheSetThroughTheDepth) {
  std::vector<int> first(24), even, free{3, 40, 41, 42};
  std::iota(first.begin(), first.end(), 0);
  for (int layer = 0; layer < 48; layer += 2) even.push_back(layer);
  EXPECT_EQ(spread_as(first, 4, 8, 48), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(spread_as(even, 4, 8, 48), (std::vector<int>{1, 3, 5, 7}));
  EXPECT_EQ(spread_as(free, 1, 8, 48), (std::vector<int>{6}));
  EXPECT_EQ(spread_as(free, 2, 8, 48), (std::vector<int>{6, 7}));
  EXPECT_EQ(spread_as(even, 8, 8, 48), (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(spread_as({47}, 3, 4, 48), (std::vector<int>{1, 2, 3}));
  EXPECT_TRUE(spread_as({}, 0, 8, 48).empty());
}

}  // namespace
}  // namespace oom::runtime
