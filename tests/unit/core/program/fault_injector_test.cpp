#include "program/fault_injector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "program/executor.h"

namespace oom::program {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Two layers of two ranks, one kind a lane.
BuiltProgram small() {
  ProgramBuilder builder({0, 0}, 1);
  for (int layer = 0; layer < 2; ++layer) {
    for (int rank = 0; rank < 2; ++rank) {
      builder.emit({.kind = "copy", .layer = layer, .lane = {Lane::kH2d, rank}});
      builder.emit({.kind = "forward", .layer = layer, .lane = {Lane::kCompute, rank}});
    }
  }
  builder.emit({.kind = "update", .layer = 1, .rank = 1, .lane = {Lane::kUpdate, 0}});
  return std::move(builder).build();
}

std::string failure_of(const std::string& fault, int steps = 3) {
  BuiltProgram built = small();
  const auto hook = fault_hook(parse_fault(fault), built.program);
  auto executor = make_cpu_executor(std::move(built), {.watchdog = std::chrono::milliseconds(80), .before_stage = hook});
  try {
    for (int step = 1; step <= steps; ++step) executor->run_step(step);
    executor->drain();
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "";
}

TEST(FaultInjector, ChosenStagesFail) {
  EXPECT_EQ(failure_of("action=throw,kind=forward,layer=1,rank=0,step=2"), "step 2, forward layer 1 rank 0 (compute, stage 5): failure injected by OOM_FAULT");
  EXPECT_EQ(failure_of("action=throw,lane=update"), "step 1, update layer 1 rank 1 (update of node 0, stage 8): failure injected by OOM_FAULT");
  EXPECT_EQ(failure_of("action=throw,kind=copy,step=7"), "");
}

TEST(FaultInjector, AStalledStageIsTheWatchdogs) {
  EXPECT_EQ(failure_of("action=stall,kind=copy,layer=0,rank=1,step=3"), "watchdog: nothing finished for 0.08 s; running: step 3, copy layer 0 rank 1 (h2d, stage 2)");
}

TEST(FaultInjector, DelaysAreThoseOfTheSeed) {
  const auto seconds = [](const std::string& fault) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(failure_of(fault, 1), "");
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  EXPECT_GT(seconds("action=delay,kind=update,microseconds=60000,seed=1") + seconds("action=delay,kind=update,microseconds=60000,seed=2") +
                seconds("action=delay,kind=update,microseconds=60000,seed=3"), 0.02);
}

TEST(FaultInjector, WhatConcernsNothingIsNoHook) {
  const Program program = small().program;
  EXPECT_TRUE(concerns(parse_fault("action=throw,kind=copy,rank=1"), program));
  for (const char* fault : {"action=throw,kind=backward", "action=throw,layer=2", "action=throw,kind=update,rank=0", "action=throw,lane=d2h"}) {
    EXPECT_FALSE(concerns(parse_fault(fault), program)) << fault;
    EXPECT_FALSE(fault_hook(parse_fault(fault), program)) << fault;
  }
}

TEST(FaultInjector, NamesTheFaultyPair) {
  const auto parse = [](const char* text) { return [text] { parse_fault(text); }; };
  EXPECT_THAT(parse("kind=update"), ThrowsMessage<ConfigError>(HasSubstr("action is missing")));
  EXPECT_THAT(parse("action=explode"), ThrowsMessage<ConfigError>(AllOf(HasSubstr("throw, stall, hang or delay"), HasSubstr("'explode'"))));
  EXPECT_THAT(parse("action=throw,layer=one"), ThrowsMessage<ConfigError>(HasSubstr("layer: must be a whole number; got 'one'")));
  EXPECT_THAT(parse("action=throw,colour=red"), ThrowsMessage<ConfigError>(HasSubstr("unknown key 'colour'; keys: action, kind")));
  EXPECT_THAT(parse("action=throw,kind"), ThrowsMessage<ConfigError>(HasSubstr("got 'kind'")));
  EXPECT_THAT(parse(""), ThrowsMessage<ConfigError>(HasSubstr("key=value")));
  EXPECT_THAT(parse("action=delay,microseconds=0"), ThrowsMessage<ConfigError>(HasSubstr("at least 1")));
}

}  // namespace
}  // namespace oom::program
