// Every setting of the plugin beside every other, under either expert strategy, with any number of ranks, document, context extension and place of state:
// losses and weights of the uncut run on one rank.
#include "covering.h"
#include "offload_run.h"

namespace oom::offload {
namespace {

using oom::testing::Factor;

struct Grid {
  const char* name;
  const char* family;
  std::vector<Factor> models;    // what is computed
  std::vector<Factor> policies;  // how
};

// Of tokens of a rank: 33 divides no number of them here.
const Factor kFeedForward{{{}, {"offload.moe_chunk=1"}, {"offload.moe_chunk=33"}}};
const Factor kLongFeedForward{{{}, {"offload.moe_chunk=33"}}};  // single tokens would be many here
const Factor kHeads{{{}, {"offload.attention_head_group=1"}, {"offload.attention_head_group=2"}}};
const Factor kSubBatch{{{}, {"offload.sub_batch=1"}}};
const Factor kCap{{{"offload.regenerate_cap=1"}, {"offload.regenerate_cap=2"}, {"offload.regenerate_cap=3"}}};
const Factor kBuffers{{{}, {"offload.buffers=2"}, {"offload.buffers=1"}}};
const Factor kExecution{{{"engine.experts=local"}, {"engine.experts=local", "engine.ranks=2"}, {"engine.experts=ep", "engine.ranks=2", "ep.routing_chunk=20"}}};
const Factor kManyRanks{{{"engine.experts=local", "engine.ranks=4"}, {"engine.experts=ep", "engine.ranks=4", "ep.routing_chunk=20"}}};
const Factor kResident{{{}, {"state.resident=[1, 3]", "state.resident_ordinary=all"}}};
const Factor kDocuments{{{}, {"data.documents=isolated"}}};
const Factor kBoundaries{{{"offload.boundaries_on_gpu=[1, 4]"}, {"offload.keep_boundaries=1+1"}, {"offload.keep_boundaries=3+1", "offload.boundaries_on_gpu=[4]"},
                          {"offload.keep_boundaries=[1, 4]", "offload.boundaries_on_gpu=[0, 1]"}}};

const std::vector<Grid>& grids() {
  static const std::vector<Grid> all{
      {"qwen3_5_moe",
       "qwen3_5_moe",
       {{{{}, {"data.documents=isolated"}, {"model.yarn_factor=2", "data.documents=isolated"}, {"model.yarn_factor=4"}, {"model.yarn_factor=8", "data.documents=isolated"}}}},
       {kLongFeedForward, kHeads, kSubBatch, kCap, kBuffers, kExecution, kResident, kBoundaries,
        {{{}, {"offload.gdn_chunk=64"}, {"offload.gdn_chunk=128"}, {"offload.gdn_chunk=130"}}},
        {{{}, {"offload.keep_attention=all"}}}}},
      {"gemma4",
       "gemma4",
       {kDocuments},
       {kFeedForward, kHeads, kSubBatch, kCap, kBuffers, kExecution, kResident, kBoundaries,
        {{{}, {"offload.attention_chunk=5"}, {"offload.attention_chunk=6"}, {"offload.attention_chunk=16"}}},
        {{{}, {"offload.attention_batch=48"}}},
        {{{}, {"offload.keep_attention=all"}, {"offload.keep_attention=[0, 3]"}}}}},
      // Windows and stretched positions are together in this family alone.
      {"mixtral",
       "mixtral",
       {{{{"model.yarn_factor=2", "data.documents=isolated"}, {"model.yarn_factor=4"}, {"model.yarn_factor=8", "data.documents=isolated"}}}},
       {kFeedForward, kHeads, kExecution, {{{}, {"offload.attention_chunk=4"}, {"offload.attention_chunk=9"}}}, {{{}, {"offload.keep_attention=all"}}}}},
      {"qwen3_5_moe_ranks",
       "qwen3_5_moe",
       {kDocuments},
       {kManyRanks, kLongFeedForward, kHeads, kBoundaries, {{{}, {"offload.gdn_chunk=64"}}}, {{{}, {"offload.keep_attention=all"}}}}},
      {"gemma4_ranks",
       "gemma4",
       {{{{"train.global_batch=12"}, {"train.global_batch=12", "data.documents=isolated"}}}},
       {{{kManyRanks.choices[0], kManyRanks.choices[1], {"engine.experts=local", "engine.ranks=3"}}},
        kFeedForward,
        kHeads,
        kSubBatch,
        kResident,
        {{{}, {"offload.keep_boundaries=1+1"}, {"offload.keep_boundaries=[1, 4]", "offload.boundaries_on_gpu=[0, 1]"}}},
        {{{}, {"offload.attention_chunk=5"}}},
        {{{}, {"offload.keep_attention=[0, 3]"}}}}}};
  return all;
}

struct GridCase {
  std::string name, family;
  Overrides model, all;
};
void PrintTo(const GridCase& test, std::ostream* out) {
  for (const std::string& override : test.all) *out << override << ' ';
}

std::vector<GridCase> cases() {
  std::vector<GridCase> list;
  for (const Grid& grid : grids()) {
    std::vector<Factor> factors = grid.models;
    factors.insert(factors.end(), grid.policies.begin(), grid.policies.end());
    int number = 0;
    for (const std::vector<size_t>& chosen : oom::testing::covering(factors)) {
      GridCase test{.name = cat(grid.name, "_", number++), .family = grid.family, .model = {}, .all = {}};
      for (size_t f = 0; f < factors.size(); ++f) {
        const std::vector<std::string>& added = factors[f].choices[chosen[f]];
        test.all.insert(test.all.end(), added.begin(), added.end());
        if (f < grid.models.size()) test.model.insert(test.model.end(), added.begin(), added.end());
      }
      list.push_back(std::move(test));
    }
  }
  return list;
}

constexpr int kGridSteps = 2;  // the second sees what the first updated

class OffloadPairs : public OffloadRun, public ::testing::WithParamInterface<GridCase> {};

TEST_P(OffloadPairs, MatchTheUncutRun) { expect_close(train(GetParam().family, GetParam().all, {}, kGridSteps), trained_once(GetParam().family, GetParam().model, kGridSteps)); }

TEST_F(OffloadRun, SingleTokensOfRecurrentModels) {
  const Overrides isolated{"data.documents=isolated"};
  expect_close(train("qwen3_5_moe", {"data.documents=isolated", "offload.moe_chunk=1", "offload.gdn_chunk=64", "offload.keep_boundaries=3+1"}, {}, kGridSteps), trained_once("qwen3_5_moe", isolated, kGridSteps));
}

INSTANTIATE_TEST_SUITE_P(Grid, OffloadPairs, ::testing::ValuesIn(cases()), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace oom::offload
