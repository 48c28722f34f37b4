// Layers that retain, under the exchange: same bits as when they are replayed, however many rows the owners keep, wherever the state lives.
#include "expert_parallel_run.h"

#include <algorithm>

namespace oom::runtime {
namespace {

using Overrides = std::vector<std::string>;

Overrides operator+(Overrides left, const Overrides& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

struct Case {
  Overrides plan, retained;
};
void PrintTo(const Case& test, std::ostream* out) {
  for (const std::string& setting : test.plan + test.retained) *out << setting << " ";
}

class RetainingRun : public ExpertParallelRun, public ::testing::WithParamInterface<Case> {};

// Nothing is left to the planner, which may choose otherwise beside retained layers.
const Overrides kStated{"offload.attention_head_group=0", "offload.moe_chunk=1000000", "offload.sub_batch=1000", "offload.keep_attention=none", "offload.keep_boundaries=all", "offload.buffers=3"};

TEST_P(RetainingRun, ChangesNoBit) {
  Overrides plan = kStated + GetParam().plan;
  if (std::none_of(plan.begin(), plan.end(), [](const std::string& setting) { return setting.starts_with("train.updates"); })) plan.push_back("train.updates=overlapped");
  EXPECT_TRUE(train(plan + GetParam().retained) == train(plan));
}

const Overrides kClipped{"train.updates=deferred", "train.clip_norm=0.5"}, kOverlapped{"train.updates=overlapped"};
const Overrides kAll{"ep.retain=all"}, kSome{"ep.retain=[1]"}, kBoth{"ep.retain=all", "ep.retain_attention=all"}, kAttention{"ep.retain_attention=[0, 2]"},
    kCrossed{"ep.retain=[0, 1]", "ep.retain_attention=[1, 2]"};
const Overrides kFloat{"precision.compute=fp32"};

// Every two of: ranks 2, 4, 8; resident none, some, all; chunk 7, 24, whole (16 to 64 tokens a rank, more where the chunk is 24); clipped or not; what is retained.
INSTANTIATE_TEST_SUITE_P(
    Plans, RetainingRun,
    ::testing::Values(Case{{"engine.ranks=2", "state.resident=none"}, kAll}, Case{Overrides{"engine.ranks=4", "state.resident=all", "ep.routing_chunk=7"} + kClipped, kAll},
                      Case{Overrides{"engine.ranks=8", "state.resident=[1]", "ep.routing_chunk=24", "train.global_batch=16"} + kOverlapped + kFloat, kAll},
                      Case{Overrides{"engine.ranks=4", "state.resident=none", "ep.routing_chunk=24", "train.global_batch=16"} + kClipped + kFloat, kBoth},
                      Case{Overrides{"engine.ranks=2", "state.resident=[0, 2]", "ep.routing_chunk=7"} + kOverlapped, kBoth}, Case{Overrides{"engine.ranks=8", "state.resident=all"} + kClipped, kBoth},
                      Case{Overrides{"engine.ranks=4", "state.resident=1"} + kOverlapped, kSome}, Case{Overrides{"engine.ranks=2", "state.resident=all", "ep.routing_chunk=24", "train.global_batch=16"} + kClipped, kSome},
                      Case{Overrides{"engine.ranks=8", "state.resident=none", "ep.routing_chunk=7"} + kFloat, kSome},
                      Case{Overrides{"engine.ranks=2", "state.resident=2", "ep.routing_chunk=7"} + kClipped, kAttention}, Case{Overrides{"engine.ranks=4", "state.resident=all"} + kFloat, kAttention},
                      Case{Overrides{"engine.ranks=2", "state.resident=1", "ep.routing_chunk=24", "train.global_batch=16"} + kOverlapped, kCrossed},
                      Case{Overrides{"engine.ranks=4", "state.resident=none", "ep.routing_chunk=7"} + kClipped, kCrossed}));

// Rows of an owner's queue: 128 in all where routing is even. Of rounds of 30 some are kept, some are not, and those of a skewed chunk differ from owner to owner.
INSTANTIATE_TEST_SUITE_P(
    Capacities, RetainingRun,
    ::testing::Values(Case{{"engine.ranks=4", "ep.receive_rows=30"}, {"ep.retain=all", "ep.retain_rows=100"}}, Case{{"engine.ranks=4", "ep.receive_rows=50"}, {"ep.retain=all", "ep.retain_rows=128"}},
                      Case{{"engine.ranks=4", "ep.routing_chunk=7"}, {"ep.retain=all", "ep.retain_rows=28"}}, Case{{"engine.ranks=2"}, {"ep.retain=all", "ep.retain_rows=256"}},
                      Case{{"engine.ranks=2", "ep.receive_rows=100"}, {"ep.retain=all", "ep.retain_rows=1"}},
                      Case{{"engine.ranks=2", "ep.routing_chunk=24"}, {"ep.retain=all", "ep.retain_rows=1000000"}}));

TEST_F(ExpertParallelRun, DelaysDoNotShowWhereLayersRetain) {
  const Overrides plan{"engine.ranks=4", "ep.routing_chunk=7", "ep.receive_rows=30", "ep.retain=all", "ep.retain_rows=28", "ep.retain_attention=[1]", "state.resident=[2]", "train.updates=overlapped"};
  const Outcome expected = train(plan);
  for (unsigned seed = 1; seed <= 3; ++seed) EXPECT_TRUE(train(plan, delayed(seed)) == expected) << seed;
}

TEST_F(ExpertParallelRun, UnwrittenMemoryReachesNothingWhereLayersRetain) {
  const Overrides plan{"engine.ranks=4", "ep.routing_chunk=7", "ep.receive_rows=30", "ep.retain=all", "ep.retain_rows=28", "ep.retain_attention=[1]"};
  EXPECT_TRUE(train(plan, {.poison = true}) == train(plan));
}

}  // namespace
}  // namespace oom::runtime
