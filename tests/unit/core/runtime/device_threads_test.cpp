// How many threads of the CPU device work on an operator: the same in every run, whichever lane's thread begins first.
#include <gtest/gtest.h>

#include <ATen/Parallel.h>

#include <atomic>

#include "oom/program.h"
#include "program/executor.h"
#include "runtime/device_runtime.h"

namespace oom::runtime {
namespace {

TEST(DeviceThreads, OfEachLaneAreItsOwn) {
  constexpr int kThreads = 3;
  for (int round = 0; round < 30; ++round) {
    auto device = DeviceRuntime::make(DeviceKind::kCpu, 1, kThreads);
    ProgramBuilder builder{{0}, 1};
    const BufferId buffer = builder.add_buffer({.name = "buffer", .place = Place::numa(0), .bytes = 8});
    std::atomic<int> before = 0, moving = 0, computing = 0;
    builder.emit({.kind = "compute", .lane = {Lane::kCompute, 0}, .writes = {buffer}, .action = [&](StageContext&) { before = at::get_num_threads(); }});
    builder.emit({.kind = "move", .lane = {Lane::kH2d, 0}, .updates = {buffer}, .action = [&](StageContext&) { moving = at::get_num_threads(); }});
    builder.emit({.kind = "compute again", .lane = {Lane::kCompute, 0}, .reads = {buffer}, .action = [&](StageContext&) { computing = at::get_num_threads(); }});
    auto executor = device->make_executor(std::move(builder).build(), {});
    executor->run_step(1);
    executor->drain();
    ASSERT_EQ(before, kThreads) << "round " << round;
    ASSERT_EQ(moving, 1) << "round " << round;
    ASSERT_EQ(computing, kThreads) << "round " << round;
  }
}

}  // namespace
}  // namespace oom::runtime
