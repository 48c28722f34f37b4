#include "program/kind_observations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "oom/program.h"

namespace oom::program {
namespace {

using ::testing::ElementsAre;

struct Work {
  const char* kind;
  double analytic;      // seconds by a rate of 1
  double measured = 0;  // seconds
  Lane lane = Lane::kCompute;
};

CostTable rates() {
  CostTable rates;
  rates.gemm_flops = 1;
  return rates;
}

Program program_of(const std::vector<Work>& works) {
  ProgramBuilder builder({0}, 1);
  for (const Work& work : works) builder.emit({.kind = work.kind, .lane = {work.lane, 0}, .cost = {.gemm_flops = work.analytic}});
  return std::move(builder).build().program;
}

KindObservations seen(const std::vector<Work>& works) {
  std::vector<StageTime> times;
  for (const Work& work : works) times.push_back({.start = 1, .end = 1 + work.measured});
  KindObservations observations;
  observations.add(program_of(works), std::vector<std::vector<StageTime>>{times}, rates());
  return observations;
}

TEST(KindObservations, WhatWasNotSeenTakesAsMuchMoreAsTheDearerKindsThatMatter) {
  // Products are twice as slow as the rates say, those with padded rows seem faster than they, and a small kind takes forty times its operations.
  const KindObservations observations = seen({{"padded", 80, 40}, {"product", 20, 50}, {"product", 10, 10}, {"small", 0.1, 4}, {"beside", 1, 1000, Lane::kIssue}});
  EXPECT_DOUBLE_EQ(observations.analytic_factor(), 2);
  CostTable costs = rates();
  costs.kinds = observations.fits();
  costs.analytic_factor = observations.analytic_factor();
  const Program program = program_of({{"product", 5}, {"unseen", 5}, {"unseen", 5, 0, Lane::kIssue}});
  EXPECT_DOUBLE_EQ(solo_seconds(program, program.stages[1], costs), 10);
  EXPECT_DOUBLE_EQ(solo_seconds(program, program.stages[2], costs), 5);
  // What was seen keeps its own price.
  CostTable without = costs;
  without.analytic_factor = 1;
  EXPECT_EQ(solo_seconds(program, program.stages[0], costs), solo_seconds(program, program.stages[0], without));
  EXPECT_THAT(analytic_kinds(program, costs), ElementsAre("unseen"));
}

TEST(KindObservations, WhatRanAfterAPauseIsPricedAsOnAGpuThatAlwaysComputes) {
  CostTable clocked = rates();
  clocked.clock = {{.share = 0.25, .seconds = 0.8}, {.share = 1, .seconds = 1}};
  // A millisecond of work after a pause ran at the clock of a GPU that hardly computes.
  const Program both = program_of({{"busy", 1}, {"after pauses", 0.001}});
  KindObservations observations;
  observations.add(both, std::vector<std::vector<StageTime>>{{{.start = 0, .end = 1}, {.start = 2, .end = 2.001}}}, clocked);
  CostTable costs = clocked;
  costs.kinds = observations.fits();
  EXPECT_NEAR(solo_seconds(both, both.stages[0], costs), 1, 1e-6) << "half a second in, the pause before it is forgotten";
  EXPECT_NEAR(solo_seconds(both, both.stages[1], costs), 0.001 / 0.8, 1e-6);
}

TEST(KindObservations, NothingSeenChangesNothing) {
  EXPECT_TRUE(KindObservations().empty());
  EXPECT_EQ(KindObservations().analytic_factor(), 1);
}

}  // namespace
}  // namespace oom::program
