#include "oom/simulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>

#include "oom/program.h"
#include "pipeline_program.h"
#include "random_program.h"

namespace oom::program {
namespace {

using ::testing::HasSubstr;

// Long streams of copies and updates side by side, as measured on the reference machine.
struct Traffic {
  int ranks = 1;
  bool h2d = false;
  bool d2h = false;
  bool update = false;
};

struct Rates {
  double h2d = 0;     // bytes a second of rank 0
  double d2h = 0;
  double update = 0;  // parameters a second
};

// The copies are as long as each other and shorter than the update, so they run beside everything else from begin to end.
Rates rates_of(Traffic traffic) {
  ProgramBuilder builder(std::vector<int32_t>(static_cast<size_t>(traffic.ranks), 0), 1);
  const double bytes = 10e9, parameters = 10e9;
  StageId h2d = kNone, d2h = kNone, update = kNone;
  for (int r = traffic.ranks - 1; r >= 0; --r) {
    if (traffic.h2d) h2d = builder.emit({.kind = "in", .lane = {Lane::kH2d, r}, .cost = {.host_bytes = {bytes}, .h2d_bytes = bytes}});
    if (traffic.d2h) d2h = builder.emit({.kind = "out", .lane = {Lane::kD2h, r}, .cost = {.host_bytes = {bytes}, .d2h_bytes = bytes}});
  }
  if (traffic.update) {
    update = builder.emit({.kind = "update", .lane = {Lane::kUpdate, 0}, .cost = {.host_bytes = {28 * parameters}, .update_parameters = parameters}});
  }
  // No stage of a step starts before all of the step before have ended: all start together.
  for (StageId before = 0; before < builder.stage_count(); ++before) {
    for (StageId after = 0; after < builder.stage_count(); ++after) builder.add_order(before, after, 1);
  }
  const Program program = std::move(builder).build().program;
  const Simulation simulation = simulate(program, CostTable{});
  Rates rates;
  const auto rate = [&](StageId stage, double amount) { return stage == kNone ? 0 : amount / simulation.stages[stage].seconds(); };
  rates.h2d = rate(h2d, bytes);
  rates.d2h = rate(d2h, bytes);
  rates.update = rate(update, parameters);
  return rates;
}

// A second of compute stages of 10 ms each, and before each of them a copy that it waits for and that waits for the one before.
double step_of(double copy_seconds, const CostTable& table) {
  ProgramBuilder builder({0}, 1);
  const int parts = 100;
  StageId first = kNone, last = kNone;
  for (int part = 0; part < parts; ++part) {
    const StageId copy = builder.emit({.kind = "in", .lane = {Lane::kH2d, 0}, .cost = {.h2d_bytes = std::max(1.0, copy_seconds / parts * table.h2d_bytes)}});
    first = part == 0 ? copy : first;
    if (last != kNone) builder.add_order(last, copy, 0);
    last = builder.emit({.kind = "gemm", .lane = {Lane::kCompute, 0}, .cost = {.gemm_flops = 0.01 * table.gemm_flops}});
    builder.add_order(copy, last, 0);
  }
  builder.add_order(last, first, 1);
  return simulate(std::move(builder).build().program, table).step_seconds;
}

TEST(Simulator, AGpuThatComputesLessOfTheTimeComputesFaster) {
  CostTable table;
  table.clock = {{.share = 0.25, .seconds = 0.85}, {.share = 0.75, .seconds = 0.9}, {.share = 1, .seconds = 1}};
  EXPECT_NEAR(step_of(0, table), 1, 1e-4) << "it always computes: the price that kinds have";
  EXPECT_NEAR(step_of(0, CostTable{}), 1, 1e-4);
  // Half of the time, of which the lane remembers 30 ms: halfway between the first two points.
  EXPECT_NEAR(step_of(0.875, table), 0.875 + 0.875, 0.003);
  EXPECT_NEAR(step_of(9, table), 9 + 0.85, 0.003) << "below the first point nothing changes";
  EXPECT_NEAR(step_of(0.875, CostTable{}), 0.875 + 1, 1e-4) << "no clock, no difference";
}

TEST(CostTable, CopiesAndUpdatesMeetAsMeasured) {
  const double near = 0.06;
  EXPECT_NEAR(rates_of({.h2d = true}).h2d, 55e9, 55e9 * near);
  EXPECT_NEAR(rates_of({.d2h = true}).d2h, 55e9, 55e9 * near);
  const Rates duplex = rates_of({.h2d = true, .d2h = true});
  EXPECT_NEAR(duplex.h2d, 50e9, 50e9 * near);
  EXPECT_NEAR(duplex.d2h, 50e9, 50e9 * near);
  const Rates both = rates_of({.ranks = 2, .h2d = true, .d2h = true});
  EXPECT_NEAR(both.h2d, 34e9, 34e9 * near);
  EXPECT_NEAR(both.d2h, 34e9, 34e9 * near);
  EXPECT_NEAR(rates_of({.update = true}).update, 5.05e9, 5.05e9 * near);
  const Rates all = rates_of({.ranks = 2, .h2d = true, .d2h = true, .update = true});
  EXPECT_NEAR(all.h2d, 28e9, 28e9 * near);
  EXPECT_NEAR(all.d2h, 28e9, 28e9 * near);
}

TEST(CostTable, UpdatesBesideCopiesAreSlower) {
  // Copies keep coming (their lanes repeat every step) while the update runs: 2.3 G parameters a second.
  ProgramBuilder builder({0, 0}, 1);
  for (int r = 0; r < 2; ++r) {
    for (int i = 0; i < 30; ++i) {
      builder.emit({.kind = "in", .lane = {Lane::kH2d, r}, .cost = {.host_bytes = {1e9}, .h2d_bytes = 1e9}});
      builder.emit({.kind = "out", .lane = {Lane::kD2h, r}, .cost = {.host_bytes = {1e9}, .d2h_bytes = 1e9}});
    }
  }
  const StageId update = builder.emit({.kind = "update", .lane = {Lane::kUpdate, 0}, .cost = {.host_bytes = {28e9}, .update_parameters = 1e9}});
  // Starts when a third of the copies of its step are done.
  builder.add_order(20, update, 0);
  const Program program = std::move(builder).build().program;
  const double rate = 1e9 / simulate(program, CostTable{}).stages[update].seconds();
  EXPECT_NEAR(rate, 2.3e9, 0.1 * 2.3e9);
}

TEST(CostTable, FitsReplaceFlopsOfTheirKind) {
  ProgramBuilder builder({0}, 1);
  builder.emit({.kind = "attention_forward", .lane = {Lane::kCompute, 0}, .cost = {.fixed_seconds = 5, .attention_flops = 1e18, .tokens = 1000, .sequence_length = 100}});
  builder.emit({.kind = "other", .lane = {Lane::kCompute, 0}, .cost = {.fixed_seconds = 1e-3, .gemm_flops = 65e12, .hbm_bytes = 1e9}});
  const Program program = std::move(builder).build().program;
  CostTable table;
  table.kinds["attention_forward"] = {.fixed = 0.5, .per_token = 1e-3, .per_token_context = 2e-5};
  EXPECT_DOUBLE_EQ(solo_seconds(program, program.stages[0], table), 0.5 + 1 + 2);
  EXPECT_DOUBLE_EQ(solo_seconds(program, program.stages[1], table), 1e-3 + 65e12 / table.gemm_flops);
}

// One rank: copies of `in` seconds fill `windows` windows, computes of `work` seconds read them.
Program streaming(int windows, double in, double work, int layers = 8) {
  ProgramBuilder builder({0}, 1);
  std::vector<BufferId> buffers;
  for (int w = 0; w < windows; ++w) buffers.push_back(builder.add_buffer({.name = cat("window ", w), .place = Place::gpu(0), .bytes = 8}));
  for (int l = 0; l < layers; ++l) {
    builder.emit({.kind = "in", .layer = l, .lane = {Lane::kH2d, 0}, .writes = {buffers[l % windows]}, .cost = {.fixed_seconds = in}});
    builder.emit({.kind = "work", .layer = l, .lane = {Lane::kCompute, 0}, .reads = {buffers[l % windows]}, .cost = {.fixed_seconds = work}});
  }
  return std::move(builder).build().program;
}

TEST(Simulator, DoubleBufferingHidesTheShorterOfCopyAndWork) {
  EXPECT_NEAR(simulate(streaming(1, 2, 3), {}).step_seconds, 8 * 5, 1e-9);
  EXPECT_NEAR(simulate(streaming(2, 2, 3), {}).step_seconds, 8 * 3, 1e-9);
  EXPECT_NEAR(simulate(streaming(2, 3, 2), {}).step_seconds, 8 * 3, 1e-9);
}

TEST(Simulator, PrefetchOfTheNextStepStartsBeforeTheStepDoes) {
  const Simulation simulation = simulate(streaming(2, 2, 3), {});
  EXPECT_LT(simulation.stages[0].start, 0);
  EXPECT_NEAR(simulation.stages[1].start, 0, 1e-9);
  EXPECT_NEAR(simulation.stages.back().end, simulation.step_seconds, 1e-9);
}

TEST(Simulator, NamesWhatComputeWaitsFor) {
  const Program program = streaming(2, 3, 2);
  const Simulation simulation = simulate(program, {});
  ASSERT_EQ(simulation.waits.size(), 1u);
  EXPECT_EQ(program.kinds[simulation.waits[0].kind], "in");
  EXPECT_EQ(simulation.waits[0].lane, Lane::kH2d);
  EXPECT_NEAR(simulation.waits[0].seconds, 8 * 1, 1e-9);
  EXPECT_EQ(program.kinds[simulation.busy[0].kind], "in");
  EXPECT_NEAR(simulation.busy[0].seconds, 8 * 3, 1e-9);
  EXPECT_EQ(simulation.busy[0].stages, 8);
}

TEST(Simulator, TheCriticalPathCoversTheStepWithoutGaps) {
  for (const Program& program : {streaming(2, 3, 2), streaming(1, 3, 2), pipeline_program().program}) {
    const Simulation simulation = simulate(program, {});
    ASSERT_FALSE(simulation.critical_path.empty());
    EXPECT_LE(simulation.critical_path.front().time.start, 1e-9);
    for (size_t i = 1; i < simulation.critical_path.size(); ++i) {
      EXPECT_LE(simulation.critical_path[i].time.start, simulation.critical_path[i - 1].time.end + 1e-9);
    }
    EXPECT_NEAR(simulation.critical_path.back().time.end, simulation.step_seconds, 1e-9);
  }
}

TEST(Simulator, CollectivesEndTogether) {
  ProgramBuilder builder({0, 0}, 1);
  const CollectiveId gather = builder.add_collective("ep", {0, 1});
  const BufferId x = builder.add_buffer({.name = "x", .place = Place::gpu(1), .bytes = 8});
  builder.emit({.kind = "slow", .lane = {Lane::kCompute, 1}, .writes = {x}, .cost = {.fixed_seconds = 5}});
  const StageId first = builder.emit({.kind = "gather", .lane = {Lane::kComm, 0}, .collective = gather, .cost = {.fixed_seconds = 1}});
  const StageId second = builder.emit({.kind = "gather", .lane = {Lane::kComm, 1}, .reads = {x}, .collective = gather, .cost = {.fixed_seconds = 1}});
  const Simulation simulation = simulate(std::move(builder).build().program, {});
  EXPECT_NEAR(simulation.stages[first].end, simulation.stages[second].end, 1e-9);
  EXPECT_GT(simulation.stages[first].seconds(), simulation.stages[second].seconds()) << "the early member waits in its lane";
}

TEST(Simulator, AnIssueStageDelaysWhatItsThreadLaunchesLater) {
  ProgramBuilder builder({0}, 1);
  const BufferId counts = builder.add_buffer({.name = "counts", .place = Place::numa(0), .bytes = 8});
  builder.emit({.kind = "route", .lane = {Lane::kCompute, 0}, .writes = {counts}, .cost = {.fixed_seconds = 2}});
  builder.emit({.kind = "read_counts", .lane = {Lane::kIssue, 0}, .reads = {counts}, .cost = {.fixed_seconds = 1}});
  builder.emit({.kind = "work", .lane = {Lane::kCompute, 0}, .cost = {.fixed_seconds = 4}});
  const Program program = std::move(builder).build().program;
  EXPECT_NEAR(simulate(program, {}).step_seconds, 2 + 1 + 4, 1e-9);
  EXPECT_NEAR(simulate(program, {}, {.issuing_threads = false}).step_seconds, 2 + 4, 1e-9);
}

TEST(Simulator, AWaitForAPoolHoldsTheWholeIssuingThread) {
  // The copy waits for the pool in the issuing thread, and `work`, emitted after it, cannot be launched meanwhile.
  ProgramBuilder builder({0}, 1);
  const BufferId converted = builder.add_buffer({.name = "converted", .place = Place::numa(0), .bytes = 8});
  const BufferId window = builder.add_buffer({.name = "window", .place = Place::gpu(0), .bytes = 8});
  builder.emit({.kind = "convert", .lane = {Lane::kPrepare, 0}, .writes = {converted}, .cost = {.fixed_seconds = 3}});
  builder.emit({.kind = "in", .lane = {Lane::kH2d, 0}, .reads = {converted}, .writes = {window}, .cost = {.fixed_seconds = 1}});
  const StageId work = builder.emit({.kind = "work", .lane = {Lane::kCompute, 0}, .cost = {.fixed_seconds = 2}});
  const Program program = std::move(builder).build().program;
  const Simulation cuda = simulate(program, {});
  const Simulation cpu = simulate(program, {}, {.issuing_threads = false});
  EXPECT_NEAR(cpu.step_seconds, 2, 1e-9) << "compute never waits for the pool";
  EXPECT_GT(cuda.step_seconds, 3.5);
  EXPECT_EQ(program.kinds[cuda.waits.at(0).kind], "convert");
  EXPECT_NEAR(cuda.stages[work].seconds(), 2, 1e-9);
}

TEST(Simulator, ACopyThatWaitsOnItsStreamHoldsNothingElse) {
  ProgramBuilder builder({0}, 1);
  const BufferId converted = builder.add_buffer({.name = "converted", .place = Place::numa(0), .bytes = 8});
  const BufferId window = builder.add_buffer({.name = "window", .place = Place::gpu(0), .bytes = 8});
  builder.emit({.kind = "convert", .lane = {Lane::kPrepare, 0}, .writes = {converted}, .cost = {.fixed_seconds = 3}});
  const StageId in = builder.emit({.kind = "in", .lane = {Lane::kH2d, 0}, .reads = {converted}, .writes = {window}, .waits_on_stream = true, .cost = {.fixed_seconds = 1}});
  builder.emit({.kind = "work", .lane = {Lane::kCompute, 0}, .cost = {.fixed_seconds = 2}});
  const Program program = std::move(builder).build().program;
  const Simulation simulation = simulate(program, {});
  EXPECT_NEAR(simulation.step_seconds, 2, 1e-9) << "compute never waits for the pool";
  EXPECT_GE(simulation.stages[in].start, simulation.stages[0].end) << "the copy does";
}

TEST(Simulator, CollectivesTakeMultiprocessorsFromCompute) {
  ProgramBuilder builder({0}, 1);
  const CollectiveId gather = builder.add_collective("ep", {0});
  const StageId work = builder.emit({.kind = "work", .lane = {Lane::kCompute, 0}, .cost = {.gemm_flops = 650e12}});
  builder.emit({.kind = "gather", .lane = {Lane::kComm, 0}, .collective = gather, .cost = {.fixed_seconds = 10, .sm_share = 0.2}});
  builder.add_order(work, 1, 1);
  const Simulation simulation = simulate(std::move(builder).build().program, {});
  EXPECT_NEAR(simulation.stages[work].seconds(), 1 / 0.8, 1e-9);
}

TEST(Simulator, ShortStepsOfTheStreamedPipelineAreBoundByTheHost) {
  const Program program = pipeline_program({.layers = 12, .layer_flops = 1e12}).program;
  const Simulation simulation = simulate(program, {});
  EXPECT_EQ(bound_by(simulation), "update of numa 0");
  EXPECT_GT(simulation.resources.front().share, 0.8);
  EXPECT_LE(simulation.resources.front().share, 1.01);
  EXPECT_EQ(simulation.resources[1].name, "host_dram of numa 0");
  EXPECT_GT(simulation.resources[1].share, 0.8);
  // Exchanges take 1 ms each: what holds them up is told, not that they are held up.
  EXPECT_EQ(program.kinds[simulation.waits.at(0).kind], "update");
  double waited = 0;
  for (const ExposedWait& wait : simulation.waits) waited += wait.seconds;
  double busy = 0;
  for (size_t id = 0; id < program.stages.size(); ++id) {
    if (program.stages[id].lane.lane == Lane::kCompute) busy += simulation.stages[id].seconds() / program.ranks;
  }
  EXPECT_NEAR(waited + busy, simulation.step_seconds, 0.01 * simulation.step_seconds);
  EXPECT_THAT(describe(program, simulation), HasSubstr("bound by update of numa 0"));
}

TEST(Simulator, LongerSequencesMakeThePipelineBoundByCompute) {
  const Program program = pipeline_program({.layers = 12, .weight_bytes = 1e8, .layer_flops = 1e14}).program;
  EXPECT_THAT(bound_by(simulate(program, {})), HasSubstr("compute of rank"));
}

TEST(Simulator, RandomProgramsNeverBreakLaneOrderOrEdges) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    const Program program = random_program(seed, {1 + static_cast<int>(seed % 3), 1 + static_cast<int>(seed % 2), 8, 60}).program;
    const Simulation simulation = simulate(program, {});
    for (size_t id = 0; id < program.stages.size(); ++id) {
      for (const Edge& edge : program.stages[id].after) {
        if (edge.distance != 0) continue;
        ASSERT_LE(simulation.stages[edge.stage].end, simulation.stages[id].start + 1e-9) << "seed " << seed;
      }
      ASSERT_GE(simulation.stages[id].seconds() + 1e-9, solo_seconds(program, program.stages[id], {})) << "seed " << seed;
    }
  }
}

TEST(Simulator, TenThousandStagesTakeATenthOfASecond) {
  const Program program = pipeline_program({.ranks = 2, .layers = 320}).program;
  ASSERT_GT(program.stages.size(), 10'000u);
  const std::clock_t start = std::clock();  // of the processor: others may use it too
  simulate(program, {});
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  RecordProperty("milliseconds", static_cast<int>(seconds * 1e3));
  std::printf("%zu stages: %.1f ms\n", program.stages.size(), seconds * 1e3);
  EXPECT_LT(seconds, 5.0) << "sanitizers and no optimisation included";
}

}  // namespace
}  // namespace oom::program
