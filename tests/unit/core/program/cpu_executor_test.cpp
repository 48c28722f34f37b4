#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "program/executor.h"
#include "program_memory.h"
#include "random_program.h"

namespace oom::program {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

BuiltProgram with_memory(BuiltProgram built, Memory& memory) {
  auto program = std::make_shared<Program>(built.program);
  for (size_t id = 0; id < built.actions.size(); ++id) {
    built.actions[id] = [program, &memory, id](StageContext& context) { mix_stage(*program, memory, static_cast<StageId>(id), context.step); };
  }
  return built;
}

TEST(CpuExecutor, RandomProgramsEqualSequentialExecutionUnderRandomDelays) {
  constexpr int kSteps = 4;
  for (unsigned seed = 0; seed < 40; ++seed) {
    BuiltProgram built = random_program(seed, {1 + static_cast<int>(seed % 3), 1 + static_cast<int>(seed % 2), 8, 60});
    const Program program = built.program;
    Memory memory = memory_of(program);
    ExecutorOptions options;
    options.watchdog = std::chrono::seconds(60);
    options.before_stage = [seed](const StageContext& context) {
      thread_local std::mt19937 random(seed ^ static_cast<unsigned>(std::hash<std::thread::id>{}(std::this_thread::get_id())));
      if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
    };
    {
      auto executor = make_cpu_executor(with_memory(std::move(built), memory), options);
      for (int step = 0; step < kSteps; ++step) executor->run_step(step);
      executor->drain();
    }
    EXPECT_EQ(memory, sequential_result(program, kSteps)) << "seed " << seed;
  }
}

// Three stages: h2d of rank 0 and 1 in parallel with an update that depends on both.
struct Small {
  ProgramBuilder builder{{0, 0}, 1};
  BufferId slot = builder.add_buffer({.name = "slot", .place = Place::numa(0), .bytes = 8});
  BufferId result = builder.add_buffer({.name = "result", .place = Place::numa(0), .bytes = 8});
};

TEST(CpuExecutor, UpdatesOfAStepOverlapTheNext) {
  Small small;
  std::atomic<int> forwards{0};
  small.builder.emit({.kind = "forward", .lane = {Lane::kCompute, 0}, .writes = {small.slot}, .action = [&](StageContext&) { ++forwards; }});
  small.builder.emit({.kind = "update", .lane = {Lane::kUpdate, 0}, .writes = {small.result}, .action = [&](StageContext& context) {
                        // The update of step 0 ends only when the forward of step 1 has run.
                        while (context.step == 0 && forwards < 2 && !context.aborted()) std::this_thread::yield();
                      }});
  auto executor = make_cpu_executor(std::move(small.builder).build(), {.watchdog = std::chrono::seconds(20)});
  executor->run_step(0);
  executor->run_step(1);
  executor->drain();
  EXPECT_EQ(forwards, 2);
}

TEST(CpuExecutor, StepResultsOnPoolsAreAwaited) {
  Small small;
  std::atomic<bool> done{false};
  small.builder.emit({.kind = "norm", .lane = {Lane::kUpdate, 0}, .writes = {small.result}, .step_result = true, .action = [&](StageContext&) {
                        std::this_thread::sleep_for(std::chrono::milliseconds(20));
                        done = true;
                      }});
  auto executor = make_cpu_executor(std::move(small.builder).build());
  executor->run_step(0);
  EXPECT_TRUE(done);
}

template <typename Exception, typename Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const Exception& error) {
    return error.what();
  }
  return "no such exception";
}

TEST(CpuExecutor, AFailureNamesItsStageAndFreesTheOtherRanks) {
  Small small;
  const CollectiveId gather = small.builder.add_collective("world", {0, 1});
  std::atomic<int> hook_calls{0};
  std::string told;
  small.builder.emit({.kind = "gather", .lane = {Lane::kComm, 0}, .collective = gather});
  small.builder.emit({.kind = "attention_forward", .layer = 3, .lane = {Lane::kCompute, 1}, .writes = {small.slot}, .action = [](StageContext& context) {
                        if (context.step == 2) throw DivergedError("loss is not finite");
                      }});
  small.builder.emit({.kind = "gather", .lane = {Lane::kComm, 1}, .reads = {small.slot}, .collective = gather});
  auto executor = make_cpu_executor(std::move(small.builder).build(), {.on_failure = [&](const std::string& message, ExitCode code) {
                                      ++hook_calls;
                                      told = cat(message, " -> ", static_cast<int>(code));
                                    }});
  executor->run_step(1);
  const auto run = [&] { executor->run_step(2); };
  EXPECT_EQ(message_of<DivergedError>(run), "step 2, attention_forward layer 3 rank 1 (compute, stage 1): loss is not finite");
  EXPECT_EQ(message_of<DivergedError>([&] { executor->drain(); }), "step 2, attention_forward layer 3 rank 1 (compute, stage 1): loss is not finite");
  executor.reset();
  EXPECT_EQ(hook_calls, 1);
  EXPECT_EQ(told, "step 2, attention_forward layer 3 rank 1 (compute, stage 1): loss is not finite -> 6");
}

TEST(CpuExecutor, FailuresOfOtherLibrariesAreDeviceErrors) {
  Small small;
  small.builder.emit({.kind = "update", .layer = 1, .rank = 0, .lane = {Lane::kUpdate, 0}, .action = [](StageContext&) { throw std::runtime_error("boom"); }});
  auto executor = make_cpu_executor(std::move(small.builder).build());
  const std::string message = message_of<DeviceError>([&] {
    executor->run_step(7);
    executor->drain();
  });
  EXPECT_EQ(message, "step 7, update layer 1 rank 0 (update of node 0, stage 0): boom");
}

TEST(CpuExecutor, TheWatchdogNamesTheStageThatDoesNotFinish) {
  Small small;
  small.builder.emit({.kind = "stuck", .layer = 5, .lane = {Lane::kD2h, 1}, .writes = {small.slot}, .action = [](StageContext& context) {
                        while (!context.aborted()) std::this_thread::yield();
                      }});
  small.builder.emit({.kind = "next", .lane = {Lane::kCompute, 0}, .reads = {small.slot}});
  auto executor = make_cpu_executor(std::move(small.builder).build(), {.watchdog = std::chrono::milliseconds(80)});
  EXPECT_EQ(message_of<DeviceError>([&] { executor->run_step(0); }),
            "watchdog: nothing finished for 0.08 s; running: step 0, stuck layer 5 rank 1 (d2h, stage 0)");
}

TEST(CpuExecutor, AbortEndsAStepThatWaits) {
  Small small;
  std::atomic<bool> running{false};
  small.builder.emit({.kind = "long", .lane = {Lane::kCompute, 0}, .action = [&](StageContext& context) {
                        running = true;
                        while (!context.aborted()) std::this_thread::yield();
                      }});
  auto executor = make_cpu_executor(std::move(small.builder).build());
  std::thread stopper([&] {
    while (!running) std::this_thread::yield();
    executor->abort("a second signal came");
  });
  EXPECT_EQ(message_of<DeviceError>([&] { executor->run_step(0); }), "a second signal came");
  stopper.join();
}

TEST(CpuExecutor, ThreadsBeginWithTheHookAndActionsRunInTheScope) {
  Small small;
  std::vector<std::string> order;
  small.builder.emit({.kind = "work", .lane = {Lane::kCompute, 1}, .action = [&](StageContext& context) { order.push_back(cat("rank ", context.rank)); }});
  ExecutorOptions options;
  options.thread_started = [&](LaneId lane) { order.push_back(lane_id_name(lane)); };
  options.scope = [&](StageContext& context, const Action& action) {
    order.push_back("in");
    action(context);
    order.push_back("out");
  };
  auto executor = make_cpu_executor(std::move(small.builder).build(), options);
  executor->run_step(0);
  EXPECT_THAT(order, ::testing::ElementsAre("compute of rank 1", "in", "rank 1", "out"));
}

TEST(CpuExecutor, StageTimesAreOfTheLastStep) {
  Small small;
  small.builder.emit({.kind = "work", .lane = {Lane::kCompute, 0}, .action = [&](StageContext&) { std::this_thread::sleep_for(std::chrono::milliseconds(5)); }});
  auto executor = make_cpu_executor(std::move(small.builder).build());
  executor->run_step(0);
  executor->drain();
  EXPECT_EQ(executor->stage_times()[0].end, 0);
  executor->record_times(true);
  const double before = now_seconds();
  executor->run_step(1);
  executor->drain();
  const StageTime time = executor->stage_times()[0];
  EXPECT_GE(time.start, before);
  EXPECT_GE(time.end - time.start, 0.004);
}

TEST(CpuExecutor, EndsCleanlyWhileAStepWaits) {
  Small small;
  small.builder.emit({.kind = "update", .lane = {Lane::kUpdate, 0}, .action = [&](StageContext& context) {
                        while (!context.aborted()) std::this_thread::yield();
                      }});
  auto executor = make_cpu_executor(std::move(small.builder).build());
  executor->run_step(0);  // does not wait for pools
  executor.reset();
}

}  // namespace
}  // namespace oom::program
