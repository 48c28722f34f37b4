#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "fake_cuda_runtime.h"
#include "program/cuda_executor.h"
#include "program_memory.h"
#include "random_program.h"

namespace oom::program {
namespace {

CudaExecutorOptions devices(int ranks) { return {.devices = std::vector<int>(static_cast<size_t>(ranks), 0)}; }

void random_delay(unsigned seed) {
  thread_local std::mt19937 random(seed ^ static_cast<unsigned>(std::hash<std::thread::id>{}(std::this_thread::get_id())));
  if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
}

TEST(CudaOrder, RandomProgramsEqualSequentialExecutionUnderRandomDelays) {
  constexpr int kSteps = 5;
  for (unsigned seed = 0; seed < 40; ++seed) {
    const int ranks = 1 + static_cast<int>(seed % 3);
    BuiltProgram built = random_program(seed, {ranks, 1 + static_cast<int>(seed % 2), 8, 60});
    const Program program = built.program;
    Memory memory = memory_of(program);
    std::vector<std::atomic<int64_t>> arrived(program.collectives.size());
    for (size_t id = 0; id < program.stages.size(); ++id) {
      built.actions[id] = [&, id](StageContext& context) {
        const auto stage = static_cast<StageId>(id);
        const int64_t step = context.step;
        const auto work = [&, stage, step, seed] {
          const CollectiveId collective = program.stages[stage].collective;
          if (collective != kNone) {
            ++arrived[collective];
            while (arrived[collective] < ranks * (step + 1)) std::this_thread::yield();
          }
          random_delay(seed);
          mix_stage(program, memory, stage, step);
        };
        random_delay(seed + 1);
        if (context.stream == nullptr) work();
        else fake_launch(context.stream, work);
      };
    }
    {
      auto executor = make_cuda_executor(std::move(built), {.watchdog = std::chrono::seconds(60)}, devices(ranks));
      executor->record_times(seed % 3 == 0);
      for (int step = 0; step < kSteps; ++step) executor->run_step(step);
      executor->drain();
      if (seed % 3 != 0) continue;
      const auto times = executor->stage_times();
      for (size_t id = 0; id < program.stages.size(); ++id) {
        EXPECT_GE(times[id].seconds(), 0) << stage_name(program, static_cast<StageId>(id));
        for (const Edge& edge : program.stages[id].after) {
          const LaneId mine = program.stages[id].lane, before = program.stages[edge.stage].lane;
          const bool one_clock = is_stream_lane(mine.lane) && is_stream_lane(before.lane) && mine.index == before.index;
          if (edge.distance != 0 || !one_clock) continue;
          EXPECT_GE(times[id].start, times[edge.stage].end - 1e-5);
        }
      }
    }
    EXPECT_EQ(memory, sequential_result(program, kSteps)) << "seed " << seed;
  }
}

// Two ranks: rank 1's compute waits for rank 0's copy of the same step; rank 0's copy waits for rank 1's compute of the step before.
struct PingPong {
  PingPong() {
    const BufferId x = builder.add_buffer({.name = "x", .place = Place::gpu(1), .bytes = 8});
    builder.emit({.kind = "push", .lane = {Lane::kComm, 0}, .writes = {x}, .action = [this](StageContext& context) {
                    fake_launch(context.stream, [this, step = context.step] { value = step; });
                  }});
    builder.emit({.kind = "use", .lane = {Lane::kCompute, 1}, .reads = {x}, .action = [this](StageContext& context) {
                    fake_launch(context.stream, [this, step = context.step] { wrong += value != step; });
                  }});
  }
  ProgramBuilder builder{{0, 0}, 1};
  int64_t value = -1;  // ordered by the program alone
  int wrong = 0;
};

TEST(CudaOrder, EventsOfOneStepAreNotTakenForThoseOfAnother) {
  PingPong game;
  auto executor = make_cuda_executor(std::move(game.builder).build(), {.before_stage = [](const StageContext&) { random_delay(7); }}, devices(2));
  for (int step = 0; step < 300; ++step) executor->run_step(step);
  executor->drain();
  EXPECT_EQ(game.wrong, 0);
}

TEST(CudaOrder, AWaitForTheStepBeforeDoesNotMeetTheRecordOfThisOne) {
  // v of step 1 waits for u of step 0, and is issued only when u of step 1 is recorded; u of step 1 ends only when v of step 1 has run.
  // With one event a stage, v would wait for that u, for ever.
  std::atomic<bool> recorded{false}, v_ran{false};
  ProgramBuilder builder({0, 0}, 1);
  const StageId u = builder.emit({.kind = "u", .lane = {Lane::kCompute, 0}, .action = [&](StageContext& context) {
                                    fake_launch(context.stream, [&, step = context.step] {
                                      while (step == 1 && !v_ran) std::this_thread::yield();
                                    });
                                  }});
  builder.emit({.kind = "after_u", .lane = {Lane::kComm, 0}, .action = [&](StageContext& context) { recorded = context.step == 1; }});
  builder.emit({.kind = "pause", .lane = {Lane::kIssue, 1}, .action = [&](StageContext& context) {
                  while (context.step == 1 && !recorded && !context.aborted()) std::this_thread::yield();
                }});
  const StageId v = builder.emit({.kind = "v", .lane = {Lane::kCompute, 1}, .action = [&](StageContext& context) {
                                    fake_launch(context.stream, [&, step = context.step] { v_ran = v_ran || step == 1; });
                                  }});
  builder.add_order(u, v, 1);
  auto executor = make_cuda_executor(std::move(builder).build(), {.watchdog = std::chrono::seconds(2)}, devices(2));
  executor->run_step(0);
  executor->run_step(1);
  try {
    executor->drain();
  } catch (const Error& error) {
    ADD_FAILURE() << error.what();
    v_ran = true;
  }
}

TEST(CudaOrder, AFailureFreesARankThatWaitsForTheOther) {
  ProgramBuilder builder({0, 0}, 1);
  const BufferId x = builder.add_buffer({.name = "x", .place = Place::gpu(0), .bytes = 8});
  builder.emit({.kind = "first", .layer = 4, .lane = {Lane::kH2d, 0}, .writes = {x}, .action = [](StageContext&) { throw FileError("gone"); }});
  builder.emit({.kind = "second", .lane = {Lane::kCompute, 1}, .reads = {x}});
  auto executor = make_cuda_executor(std::move(builder).build(), {}, devices(2));
  try {
    executor->run_step(9);
    FAIL() << "nothing was thrown";
  } catch (const FileError& error) {
    EXPECT_STREQ(error.what(), "step 9, first layer 4 rank 0 (h2d, stage 0): gone");
  }
}

// A copy that waits for an update of the host, and work of the same rank that does not.
struct CopyBesideUpdate {
  CopyBesideUpdate() {
    const BufferId slot = builder.add_buffer({.name = "slot", .place = Place::numa(0), .bytes = 8});
    builder.emit({.kind = "update", .lane = {Lane::kUpdate, 0}, .writes = {slot}, .action = [this](StageContext& context) {
                    while (hold && !context.aborted()) std::this_thread::yield();
                    if (fails) throw FileError("gone");
                    value = context.step;
                  }});
    builder.emit({.kind = "copy", .lane = {Lane::kH2d, 0}, .reads = {slot}, .waits_on_stream = true, .action = [this](StageContext& context) {
                    fake_launch(context.stream, [this, step = context.step] { wrong += value != step && !fails; });
                  }});
    builder.emit({.kind = "other", .lane = {Lane::kCompute, 0}, .action = [this](StageContext& context) { fake_launch(context.stream, [this] { ++others; }); }});
  }
  ProgramBuilder builder{{0}, 1};
  std::atomic<bool> hold{false}, fails{false};
  std::atomic<int> others{0};
  int64_t value = -1;  // ordered by the program alone
  int wrong = 0;
};

TEST(CudaOrder, ACopyWaitsForAnUpdateAndNothingWaitsForItsLaunch) {
  CopyBesideUpdate stages;
  stages.hold = true;
  auto executor = make_cuda_executor(std::move(stages.builder).build(), {.watchdog = std::chrono::seconds(20)}, devices(1));
  executor->run_step(0);  // returns when all is launched, while the update is held
  for (int tries = 0; tries < 5000 && stages.others == 0; ++tries) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(stages.others, 1) << "what does not wait for the update has run";
  stages.hold = false;
  for (int step = 1; step < 300; ++step) executor->run_step(step);
  executor->drain();
  EXPECT_EQ(stages.wrong, 0);
  EXPECT_EQ(stages.others, 300);
}

TEST(CudaOrder, WithoutStreamMemoryOperationsTheLaunchWaits) {
  fake_device_cannot_wait_for_memory = true;
  CopyBesideUpdate stages;
  auto executor = make_cuda_executor(std::move(stages.builder).build(), {.watchdog = std::chrono::seconds(20)}, devices(1));
  fake_device_cannot_wait_for_memory = false;
  for (int step = 0; step < 50; ++step) executor->run_step(step);
  executor->drain();
  EXPECT_EQ(stages.wrong, 0);
}

TEST(CudaOrder, WhereRanksShareADeviceTheLaunchWaits) {
  // Rank 1's stream would wait for an update that needs what rank 0 launches later, which on one device may be stuck behind that wait.
  ProgramBuilder builder({0, 0}, 1);
  const BufferId slot = builder.add_buffer({.name = "slot", .place = Place::numa(0), .bytes = 8});
  std::atomic<bool> hold{true};
  std::atomic<int> launched{0};
  builder.emit({.kind = "update", .lane = {Lane::kUpdate, 0}, .writes = {slot}, .action = [&](StageContext& context) {
                  while (hold && !context.aborted()) std::this_thread::yield();
                }});
  builder.emit({.kind = "copy", .lane = {Lane::kH2d, 1}, .reads = {slot}, .waits_on_stream = true, .action = [&](StageContext&) { ++launched; }});
  CudaExecutorOptions shared = devices(2);
  shared.devices = {0, 0};
  auto executor = make_cuda_executor(std::move(builder).build(), {.watchdog = std::chrono::seconds(20)}, shared);
  std::thread releases([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(launched, 0);
    hold = false;
  });
  executor->run_step(0);
  releases.join();
  executor->drain();
  EXPECT_EQ(launched, 1);
}

TEST(CudaOrder, AFailedUpdateFreesTheStreamsThatWaitForIt) {
  CopyBesideUpdate stages;
  stages.hold = true;
  stages.fails = true;
  {
    auto executor = make_cuda_executor(std::move(stages.builder).build(), {}, devices(1));
    executor->run_step(0);
    stages.hold = false;
    try {
      executor->drain();
      FAIL() << "nothing was thrown";
    } catch (const FileError& error) {
      EXPECT_STREQ(error.what(), "step 0, update (update of node 0, stage 0): gone");
    }
  }  // joins the fake's streams: hangs where one still waits
}

TEST(CudaOrder, TheWatchdogNamesTheStageThatTheStreamDoesNotFinish) {
  std::atomic<bool> release{false};
  ProgramBuilder builder({0}, 1);
  const BufferId x = builder.add_buffer({.name = "x", .place = Place::gpu(0), .bytes = 8});
  builder.emit({.kind = "fine", .lane = {Lane::kCompute, 0}});
  builder.emit({.kind = "stuck", .layer = 5, .lane = {Lane::kCompute, 0}, .writes = {x}, .action = [&](StageContext& context) {
                  fake_launch(context.stream, [&] {
                    while (!release) std::this_thread::yield();
                  });
                }});
  builder.emit({.kind = "next", .lane = {Lane::kIssue, 0}, .reads = {x}});
  auto executor = make_cuda_executor(std::move(builder).build(), {.watchdog = std::chrono::milliseconds(100)}, devices(1));
  try {
    executor->run_step(0);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const DeviceError& error) {
    EXPECT_STREQ(error.what(), "watchdog: nothing finished for 0.1 s; running: step 0, stuck layer 5 rank 0 (compute, stage 1)");
  }
  release = true;
}

// A stage counts as started when it has been launched; one that hangs in its launch must be told from those that wait for it.
TEST(CudaOrder, TheWatchdogNamesTheStageThatTheIssuingThreadDoesNotLaunch) {
  ProgramBuilder builder({0, 0}, 1);
  const BufferId x = builder.add_buffer({.name = "x", .place = Place::gpu(0), .bytes = 8});
  builder.emit({.kind = "fine", .lane = {Lane::kCompute, 0}});
  builder.emit({.kind = "stuck", .layer = 5, .lane = {Lane::kH2d, 0}, .writes = {x}, .action = [](StageContext& context) {
                  while (!context.aborted()) std::this_thread::yield();
                }});
  builder.emit({.kind = "next", .lane = {Lane::kCompute, 0}, .reads = {x}});
  builder.emit({.kind = "other", .lane = {Lane::kCompute, 1}, .reads = {x}});
  auto executor = make_cuda_executor(std::move(builder).build(), {.watchdog = std::chrono::milliseconds(100)}, devices(2));
  try {
    executor->run_step(0);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const DeviceError& error) {
    EXPECT_STREQ(error.what(), "watchdog: nothing finished for 0.1 s; running: step 0, stuck layer 5 rank 0 (h2d, stage 1)");
  }
}

TEST(CudaOrder, IssuingDoesNotRunMoreThanTwoStepsAhead) {
  std::atomic<int64_t> finished{0};
  int64_t most_ahead = 0;
  ProgramBuilder builder({0}, 1);
  builder.emit({.kind = "slow", .lane = {Lane::kCompute, 0}, .action = [&](StageContext& context) {
                  most_ahead = std::max(most_ahead, context.step - finished);
                  fake_launch(context.stream, [&] {
                    std::this_thread::sleep_for(std::chrono::milliseconds(1));
                    ++finished;
                  });
                }});
  auto executor = make_cuda_executor(std::move(builder).build(), {}, devices(1));
  for (int step = 0; step < 20; ++step) executor->run_step(step);
  executor->drain();
  EXPECT_EQ(finished, 20);
  EXPECT_EQ(most_ahead, 1) << "one step runs while the next is issued";
}

}  // namespace
}  // namespace oom::program
