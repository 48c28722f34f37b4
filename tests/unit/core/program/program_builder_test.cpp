#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "oom/program.h"

namespace oom {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

BufferId device_buffer(ProgramBuilder& builder, const char* name, Lifetime lifetime = Lifetime::kPersistent) {
  return builder.add_buffer({.name = name, .place = Place::gpu(0), .bytes = 8, .lifetime = lifetime});
}

TEST(ProgramBuilder, ReadWaitsForTheWriterOnAnotherLane) {
  ProgramBuilder builder({0}, 1);
  const BufferId window = device_buffer(builder, "window");
  const StageId in = builder.emit({.kind = "in", .lane = {Lane::kH2d, 0}, .writes = {window}});
  const StageId use = builder.emit({.kind = "use", .lane = {Lane::kCompute, 0}, .reads = {window}});
  const Program program = std::move(builder).build().program;
  EXPECT_THAT(program.stages[use].after, ElementsAre(Edge{in, 0}));
  EXPECT_THAT(program.stages[in].after, ElementsAre(Edge{use, 1})) << "the next step's copy waits for the reader";
  EXPECT_EQ(program.stages[use].accesses[0].version, 1);
  EXPECT_EQ(program.buffers[window].versions, 1);
}

TEST(ProgramBuilder, ActionsOfWhatIsOnlyJudgedAreLeftOut) {
  const auto build = [](ProgramUse use) {
    ProgramBuilder builder({0}, 1, use);
    builder.emit({.kind = "use", .lane = {Lane::kCompute, 0}, .action = [](StageContext&) {}});
    return std::move(builder).build();
  };
  const BuiltProgram judged = build(ProgramUse::kJudge);
  EXPECT_EQ(judged.program.stages.size(), 1u);
  EXPECT_FALSE(judged.actions[0]);
  EXPECT_TRUE(build(ProgramUse::kRun).actions[0]);
}

TEST(ProgramBuilder, WindowReuseWaitsForTheReaderAndLaneOrderIsFree) {
  ProgramBuilder builder({0}, 1);
  const BufferId window = device_buffer(builder, "window");
  const BufferId x = device_buffer(builder, "x", Lifetime::kTransient);
  const StageId in0 = builder.emit({.kind = "in", .layer = 0, .lane = {Lane::kH2d, 0}, .writes = {window}});
  const StageId use0 = builder.emit({.kind = "use", .layer = 0, .lane = {Lane::kCompute, 0}, .reads = {window}, .writes = {x}});
  const StageId in1 = builder.emit({.kind = "in", .layer = 1, .lane = {Lane::kH2d, 0}, .writes = {window}});
  const StageId use1 = builder.emit({.kind = "use", .layer = 1, .lane = {Lane::kCompute, 0}, .reads = {window, x}});
  const Program program = std::move(builder).build().program;
  EXPECT_THAT(program.stages[in1].after, ElementsAre(Edge{use0, 0})) << "write after write is implied by lane order";
  EXPECT_THAT(program.stages[use1].after, ElementsAre(Edge{in1, 0})) << "the transient is ordered by the compute lane";
  EXPECT_THAT(program.stages[in0].after, ElementsAre(Edge{use1, 1}));
}

// The compute lane makes memory, a copy fills it; it makes memory and fills it, a copy reads it. Both go with the compute lane's last stage.
TEST(ProgramBuilder, CopiesUseTransientsBetweenTwoComputeStages) {
  ProgramBuilder builder({0}, 1);
  const LaneId compute{Lane::kCompute, 0}, h2d{Lane::kH2d, 0}, d2h{Lane::kD2h, 0};
  const BufferId in = device_buffer(builder, "in", Lifetime::kTransient), out = device_buffer(builder, "out", Lifetime::kTransient);
  const StageId reserve = builder.emit({.kind = "reserve", .lane = compute, .writes = {in}});
  const StageId load = builder.emit({.kind = "load", .lane = h2d, .writes = {in}});
  const StageId use = builder.emit({.kind = "use", .lane = compute, .reads = {in}, .writes = {out}});
  const StageId store = builder.emit({.kind = "store", .lane = d2h, .reads = {out}});
  const StageId release = builder.emit({.kind = "release", .lane = compute, .reads = {out}});
  const Program program = std::move(builder).build().program;
  EXPECT_THAT(program.stages[load].after, ElementsAre(Edge{reserve, 0}));
  EXPECT_THAT(program.stages[use].after, ElementsAre(Edge{load, 0}));
  EXPECT_THAT(program.stages[store].after, ElementsAre(Edge{use, 0}));
  EXPECT_THAT(program.stages[release].after, ElementsAre(Edge{store, 0})) << "a read that ends a life waits for other readers";
  EXPECT_THAT(program.stages[reserve].after, ::testing::IsEmpty()) << "the next step's memory is taken by the same lane";
}

TEST(ProgramBuilder, RefusesATransientThatACopyTouchesLast) {
  ProgramBuilder builder({0}, 1);
  const BufferId out = device_buffer(builder, "out", Lifetime::kTransient);
  builder.emit({.kind = "make", .lane = {Lane::kCompute, 0}, .writes = {out}});
  builder.emit({.kind = "store", .lane = {Lane::kD2h, 0}, .reads = {out}});
  EXPECT_THAT(message_of([&] { std::move(builder).build(); }), HasSubstr("is the last to touch transient buffer 'out'; a stage of the compute lane must release it"));
}

TEST(ProgramBuilder, VersionZeroIsWhatThePreviousStepLeft) {
  ProgramBuilder builder({0}, 1);
  const BufferId weights = builder.add_buffer({.name = "weights", .place = Place::numa(0), .bytes = 8});
  const BufferId window = device_buffer(builder, "window");
  const StageId in = builder.emit({.kind = "in", .lane = {Lane::kH2d, 0}, .reads = {weights}, .writes = {window}});
  const StageId update = builder.emit({.kind = "update", .lane = {Lane::kUpdate, 0}, .updates = {weights}});
  const Program program = std::move(builder).build().program;
  EXPECT_EQ(program.stages[in].accesses[0].version, 0);
  EXPECT_EQ(program.stages[update].accesses[0].version, 1);
  EXPECT_THAT(program.stages[in].after, ElementsAre(Edge{update, 1}));
  EXPECT_THAT(program.stages[update].after, ElementsAre(Edge{in, 0}));
}

TEST(ProgramBuilder, ChainsImplyOrdersAcrossTheWrap) {
  // c (of the step before) is after b, which is after a: `a` of the next step needs the edge from c alone.
  ProgramBuilder builder({0}, 1);
  const BufferId p = device_buffer(builder, "p");
  const BufferId q = device_buffer(builder, "q");
  const StageId a = builder.emit({.kind = "a", .lane = {Lane::kH2d, 0}, .writes = {p}});
  const StageId b = builder.emit({.kind = "b", .lane = {Lane::kCompute, 0}, .reads = {p}, .writes = {q}});
  const StageId c = builder.emit({.kind = "c", .lane = {Lane::kD2h, 0}, .reads = {p, q}});
  const Program program = std::move(builder).build().program;
  EXPECT_THAT(program.stages[a].after, ElementsAre(Edge{c, 1}));
  EXPECT_THAT(program.stages[b].after, ElementsAre(Edge{a, 0})) << "that c read q is implied through a";
  EXPECT_THAT(program.stages[c].after, ElementsAre(Edge{b, 0}));
}

TEST(ProgramBuilder, CollectivesCarryOrdersBetweenRanks) {
  ProgramBuilder builder({0, 0}, 1);
  const BufferId shared = builder.add_buffer({.name = "counts", .place = Place::numa(0), .bytes = 8});
  const BufferId other = builder.add_buffer({.name = "other", .place = Place::numa(0), .bytes = 8});
  const CollectiveId gather = builder.add_collective("ep", {0, 1});
  builder.emit({.kind = "write", .lane = {Lane::kComm, 1}, .writes = {shared, other}});
  const StageId member0 = builder.emit({.kind = "gather", .lane = {Lane::kComm, 0}, .collective = gather});
  builder.emit({.kind = "gather", .lane = {Lane::kComm, 1}, .collective = gather});
  const StageId read0 = builder.emit({.kind = "read", .lane = {Lane::kComm, 0}, .reads = {shared}});
  const Program program = std::move(builder).build().program;
  EXPECT_THAT(program.stages[member0].after, IsEmpty());
  EXPECT_THAT(program.stages[read0].after, IsEmpty()) << "rank 1 wrote before it entered the collective";
}

TEST(ProgramBuilder, CollectivesInDifferentOrdersAreACircle) {
  ProgramBuilder builder({0, 0}, 1);
  const CollectiveId first = builder.add_collective("ep", {0, 1});
  const CollectiveId second = builder.add_collective("ep", {0, 1});
  builder.emit({.kind = "gather", .layer = 1, .lane = {Lane::kComm, 0}, .collective = first});
  builder.emit({.kind = "scatter", .layer = 2, .lane = {Lane::kComm, 0}, .collective = second});
  builder.emit({.kind = "scatter", .layer = 2, .lane = {Lane::kComm, 1}, .collective = second});
  builder.emit({.kind = "gather", .layer = 1, .lane = {Lane::kComm, 1}, .collective = first});
  const std::string message = message_of([&] { std::move(builder).build(); });
  EXPECT_THAT(message, HasSubstr("circle"));
  EXPECT_THAT(message, HasSubstr("gather layer 1"));
  EXPECT_THAT(message, HasSubstr("scatter layer 2"));
}

TEST(ProgramBuilder, DemandedOrdersAreKeptOnlyWhenNothingImpliesThem) {
  ProgramBuilder builder({0}, 1);
  const StageId a = builder.emit({.kind = "a", .lane = {Lane::kCompute, 0}});
  const StageId b = builder.emit({.kind = "b", .lane = {Lane::kCompute, 0}, .after = {{a, 0}}});
  const StageId c = builder.emit({.kind = "c", .lane = {Lane::kD2h, 0}, .after = {{a, 0}, {b, 0}}});
  builder.add_order(c, a, 1);
  const Program program = std::move(builder).build().program;
  EXPECT_THAT(program.stages[b].after, IsEmpty());
  EXPECT_THAT(program.stages[c].after, ElementsAre(Edge{b, 0}));
  EXPECT_THAT(program.stages[a].after, ElementsAre(Edge{c, 1}));
  EXPECT_THAT(program.stages[c].demanded, ElementsAre(Edge{a, 0}, Edge{b, 0}));
}

TEST(ProgramBuilder, SharedBytesAreReusedInTurn) {
  ProgramBuilder builder({0}, 1);
  const BufferId big = builder.add_buffer({.name = "big", .place = Place::gpu(0), .bytes = 64});
  const BufferId small = builder.add_buffer({.name = "small", .place = Place::gpu(0), .bytes = 8, .shares = big});
  builder.emit({.kind = "a", .lane = {Lane::kH2d, 0}, .writes = {big}});
  const StageId b = builder.emit({.kind = "b", .lane = {Lane::kCompute, 0}, .reads = {big}});
  const StageId c = builder.emit({.kind = "c", .lane = {Lane::kH2d, 0}, .writes = {small}});
  EXPECT_THAT(message_of([&] { builder.emit({.kind = "late", .layer = 7, .lane = {Lane::kCompute, 0}, .reads = {big}}); }),
              HasSubstr("late layer 7 part -1 on compute of rank 0 (stage 3): reads buffer 'big' whose bytes now hold 'small'"));
  const Program program = std::move(builder).build().program;
  EXPECT_THAT(program.stages[c].after, ElementsAre(Edge{b, 0}));
}

TEST(ProgramBuilder, RefusesWhatCannotBeMeant) {
  ProgramBuilder builder({0}, 1);
  const BufferId transient = device_buffer(builder, "x", Lifetime::kTransient);
  const BufferId big = device_buffer(builder, "big");
  const BufferId small = builder.add_buffer({.name = "small", .place = Place::gpu(0), .bytes = 4, .shares = big});
  const LaneId compute{Lane::kCompute, 0};
  EXPECT_THAT(message_of([&] { builder.emit({.kind = "k", .lane = compute, .reads = {transient}}); }), HasSubstr("transient buffer 'x' before"));
  EXPECT_THAT(message_of([&] { builder.emit({.kind = "k", .lane = {Lane::kH2d, 0}, .writes = {transient}}); }), HasSubstr("a stage of the compute lane must make it"));
  EXPECT_THAT(message_of([&] { builder.emit({.kind = "k", .lane = {Lane::kUpdate, 0}, .writes = {transient}}); }), HasSubstr("only stream lanes of that rank may"));
  EXPECT_THAT(message_of([&] { builder.emit({.kind = "k", .lane = compute, .reads = {big}, .writes = {big}}); }), HasSubstr("'big' twice"));
  EXPECT_THAT(message_of([&] { builder.emit({.kind = "k", .lane = {Lane::kCompute, 1}}); }), HasSubstr("there are 1 ranks"));
  EXPECT_THAT(message_of([&] { builder.emit({.kind = "k", .lane = compute, .reads = {99}}); }), HasSubstr("unknown buffer 99"));
  EXPECT_THAT(message_of([&] { builder.add_buffer({.name = "huge", .place = Place::gpu(0), .bytes = 99, .shares = big}); }),
              HasSubstr("does not fit into 'big'"));
  EXPECT_EQ(builder.stage_count(), 0);
  builder.emit({.kind = "read", .lane = compute, .reads = {big}});
  builder.emit({.kind = "write", .lane = compute, .writes = {small}});
  EXPECT_THAT(message_of([&] { std::move(builder).build(); }), HasSubstr("begins by reading buffer 'big', but the step before leaves 'small'"));
}

TEST(ProgramBuilder, DescribesAProgramForPeople) {
  ProgramBuilder builder({0}, 1);
  const BufferId window = builder.add_buffer({.name = "window", .place = Place::gpu(0), .bytes = 1 << 20, .buffer_class = BufferClass::kWorkingWeight});
  builder.emit({.kind = "weights_in", .layer = 2, .lane = {Lane::kH2d, 0}, .writes = {window}});
  builder.emit({.kind = "mlp_forward", .layer = 2, .part = 1, .lane = {Lane::kCompute, 0}, .reads = {window}, .step_result = true});
  EXPECT_EQ(describe(std::move(builder).build().program),
            "1 ranks, 1 nodes, 1 buffers, 2 stages, 0 shards\n"
            "buffer 0 window: gpu 0, 1.00 MiB, working_weight\n"
            "stage weights_in layer 2 rank 0 (h2d, stage 0): writes window v1; after 1 mlp_forward of the step before\n"
            "stage mlp_forward layer 2 part 1 rank 0 (compute, stage 1): reads window v1; after 0 weights_in; step result\n");
}

}  // namespace
}  // namespace oom
