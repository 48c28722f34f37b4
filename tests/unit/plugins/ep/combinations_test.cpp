// Every combination of what ep can be told: resident layers, retained layers, chunks, clipping, ranks. Against Local each, and against each other to the bit
// where only the place of state or of activations differs.
#include "expert_parallel_run.h"

#include <cmath>
#include <map>
#include <tuple>

namespace oom::runtime {
namespace {

using Overrides = std::vector<std::string>;

// 512 tokens a step: 128 or 256 a rank, so that chunks of 64 are chunks, and chunks of 7 leave a smaller one.
const Overrides kBase{"train.global_batch=32", "precision.compute=fp32", "state.resident_ordinary=none", "offload.attention_head_group=0", "offload.moe_chunk=1000000", "offload.sub_batch=1000",
                      "offload.keep_attention=none", "offload.keep_boundaries=all", "offload.buffers=3"};

class Combinations : public ExpertParallelRun, public ::testing::WithParamInterface<std::tuple<int, const char*, bool>> {
 protected:
  Combinations() {
    // The usual initial weights are so small that a step hardly shows what experts did.
    std::string model = kModel;
    model.insert(model.rfind('}'), R"(, "initializer_range": 0.08)");
    write_file(folder_ / "model/config.json", model);
  }

  Outcome run(const Overrides& more) {
    const auto& [ranks, chunk, clips] = GetParam();
    Overrides settings = kBase;
    settings.insert(settings.end(), more.begin(), more.end());
    settings.push_back(cat("engine.ranks=", ranks));
    settings.push_back(clips ? "train.updates=deferred" : "train.updates=overlapped");
    if (clips) settings.push_back("train.clip_norm=0.5");
    return train(settings);
  }

  /// The same by Local, run once for all chunks.
  const Outcome& local() {
    static std::map<std::pair<int, bool>, Outcome> known;
    const auto [entry, first] = known.try_emplace({std::get<0>(GetParam()), std::get<2>(GetParam())});
    if (first) entry->second = run({"engine.experts=local", "state.resident=none"});
    return entry->second;
  }
};

// Sums in another order, in FP32.
void expect_close(const Outcome& got, const Outcome& expected) {
  for (int step = 0; step < kSteps; ++step) {
    EXPECT_NEAR(got.losses[step], expected.losses[step], 1e-6 * expected.losses[step]) << "loss of step " << step + 1;
    EXPECT_NEAR(got.norms[step], expected.norms[step], 1e-5 * expected.norms[step]) << "norm of step " << step + 1;
  }
  // Of single weights AdamW follows the rounding where a gradient is nearly zero: by up to 2e-3 a step, did it err in a gradient's sign.
  for (size_t p = 0; p < expected.weights.size(); ++p) {
    double most = 0, squares = 0;
    for (size_t i = 0; i < expected.weights[p].size(); ++i) {
      const double difference = std::abs(static_cast<double>(got.weights[p][i]) - expected.weights[p][i]);
      most = std::max(most, difference);
      squares += difference * difference;
    }
    EXPECT_LE(most, 1e-4) << "parameter " << p;
    EXPECT_LE(std::sqrt(squares / static_cast<double>(expected.weights[p].size())), 1e-6) << "parameter " << p;
  }
}

TEST_P(Combinations, AgreeWithLocalAndWithEachOther) {
  std::optional<Outcome> first;
  for (const char* resident : {"state.resident=none", "state.resident=[1]", "state.resident=all"}) {
    for (const char* retained : {"ep.retain=none", "ep.retain=[0, 2]", "ep.retain=all"}) {
      SCOPED_TRACE(cat(resident, " ", retained));
      const Outcome outcome = run({"engine.experts=ep", std::get<1>(GetParam()), resident, retained});
      if (first) {
        EXPECT_TRUE(outcome == *first) << "not the bits of the first";
      } else {
        expect_close(outcome, local());
        first = outcome;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Combinations, ::testing::Combine(::testing::Values(2, 4), ::testing::Values("ep.routing_chunk=7", "ep.routing_chunk=64", "ep.routing_chunk=auto"), ::testing::Bool()),
                         [](const auto& info) {
                           const std::string chunk = std::get<1>(info.param);
                           return cat("ranks_", std::get<0>(info.param), "_chunk_", chunk.substr(chunk.find('=') + 1), std::get<2>(info.param) ? "_clipped" : "");
                         });

}  // namespace
}  // namespace oom::runtime
