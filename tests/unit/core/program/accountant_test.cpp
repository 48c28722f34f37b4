#include "oom/accountant.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "oom/program.h"
#include "pipeline_program.h"
#include "random_program.h"

namespace oom::program {
namespace {

using ::testing::HasSubstr;

constexpr LaneId kCompute0{Lane::kCompute, 0};

TEST(Accountant, TransientsLiveFromFirstWriterToLastReader) {
  ProgramBuilder builder({0}, 1);
  const auto transient = [&](const char* name, int64_t bytes, BufferClass c) {
    return builder.add_buffer({.name = name, .place = Place::gpu(0), .bytes = bytes, .buffer_class = c, .lifetime = Lifetime::kTransient});
  };
  builder.add_buffer({.name = "window", .place = Place::gpu(0), .bytes = 1000, .buffer_class = BufferClass::kWorkingWeight});
  const BufferId a = transient("a", 10, BufferClass::kRetained), b = transient("b", 20, BufferClass::kBoundary), c = transient("c", 40, BufferClass::kBoundary);
  builder.emit({.kind = "s0", .lane = kCompute0, .writes = {a}});
  builder.emit({.kind = "s1", .lane = kCompute0, .reads = {a}, .writes = {b}});
  const StageId peak = builder.emit({.kind = "s2", .lane = kCompute0, .reads = {b}, .writes = {c}, .cost = {.workspace_bytes = 5}});
  builder.emit({.kind = "s3", .lane = kCompute0, .reads = {a, c}});
  builder.emit({.kind = "s4", .lane = kCompute0, .cost = {.workspace_bytes = 7}});
  const Program program = std::move(builder).build().program;
  const PlaceAccount account = account_memory(program).gpus[0];
  std::vector<int64_t> live;
  for (const LiveBytes& at : account.live) live.push_back(at.bytes);
  EXPECT_THAT(live, ::testing::ElementsAre(1010, 1030, 1075, 1050, 1007));
  for (const LiveBytes& at : account.live) EXPECT_EQ(std::accumulate(at.classes.begin(), at.classes.end(), int64_t{0}), at.bytes);
  EXPECT_EQ(account.live[2].classes, account.at_peak);
  EXPECT_EQ(account.live[3].classes[static_cast<size_t>(BufferClass::kBoundary)], 40);
  EXPECT_EQ(account.peak_bytes, 1075);
  EXPECT_EQ(account.peak_stage, peak);
  EXPECT_EQ(account.persistent_bytes, 1000);
  EXPECT_EQ(account.at_peak[static_cast<size_t>(BufferClass::kBoundary)], 60);
  EXPECT_EQ(account.at_peak[static_cast<size_t>(BufferClass::kWorkspace)], 5);
  EXPECT_EQ(account.objects[0].name, "window");
  EXPECT_EQ(account.objects[1].name, "c");
  EXPECT_EQ(account.objects.back().name, "workspace of s2 rank 0 (compute, stage 2)");
}

// What copies fill or read lives from the compute stage that makes its memory to the one that releases it, wherever the copy is emitted between them.
TEST(Accountant, TransientsThatCopiesTouchLiveByTheComputeLane) {
  ProgramBuilder builder({0}, 1);
  const auto transient = [&](const char* name, int64_t bytes) { return builder.add_buffer({.name = name, .place = Place::gpu(0), .bytes = bytes, .lifetime = Lifetime::kTransient}); };
  const BufferId in = transient("in", 10), out = transient("out", 100);
  builder.emit({.kind = "before", .lane = kCompute0});
  builder.emit({.kind = "reserve", .lane = kCompute0, .writes = {in}});
  builder.emit({.kind = "work", .lane = kCompute0});
  builder.emit({.kind = "load", .lane = {Lane::kH2d, 0}, .writes = {in}});
  builder.emit({.kind = "use", .lane = kCompute0, .reads = {in}, .writes = {out}});
  builder.emit({.kind = "store", .lane = {Lane::kD2h, 0}, .reads = {out}});
  builder.emit({.kind = "work", .lane = kCompute0});
  builder.emit({.kind = "release", .lane = kCompute0, .reads = {out}});
  builder.emit({.kind = "after", .lane = kCompute0});
  const PlaceAccount account = account_memory(std::move(builder).build().program).gpus[0];
  std::vector<int64_t> live;
  for (const LiveBytes& at : account.live) live.push_back(at.bytes);
  EXPECT_THAT(live, ::testing::ElementsAre(0, 10, 10, 110, 100, 100, 0));
}

TEST(Accountant, SharedBytesCountOnce) {
  ProgramBuilder builder({0}, 1);
  const BufferId big = builder.add_buffer({.name = "big", .place = Place::gpu(0), .bytes = 64});
  builder.add_buffer({.name = "small", .place = Place::gpu(0), .bytes = 32, .shares = big});
  EXPECT_EQ(account_memory(std::move(builder).build().program).gpus[0].peak_bytes, 64);
}

TEST(Accountant, OtherLanesKeepTheirLargestWorkspace) {
  ProgramBuilder builder({0}, 1);
  builder.emit({.kind = "copy", .lane = {Lane::kH2d, 0}, .cost = {.workspace_bytes = 30}});
  builder.emit({.kind = "copy", .lane = {Lane::kH2d, 0}, .cost = {.workspace_bytes = 50}});
  builder.emit({.kind = "work", .lane = kCompute0, .cost = {.workspace_bytes = 4}});
  EXPECT_EQ(account_memory(std::move(builder).build().program).gpus[0].peak_bytes, 54);
}

TEST(Accountant, HostTransientsCountWhereverOrderAllowsThem) {
  // Two chains on different lanes: a then b in one, c in the other. a and b are never together, c may be beside either.
  ProgramBuilder builder({0}, 1);
  const auto transient = [&](const char* name, int64_t bytes) {
    return builder.add_buffer({.name = name, .place = Place::numa(0), .bytes = bytes, .buffer_class = BufferClass::kResult, .lifetime = Lifetime::kTransient});
  };
  const BufferId a = transient("a", 10), b = transient("b", 20), c = transient("c", 40);
  const LaneId out{Lane::kD2h, 0}, expert{Lane::kD2hExpert, 0};
  builder.emit({.kind = "write a", .lane = out, .writes = {a}});
  builder.emit({.kind = "read a", .lane = out, .reads = {a}});
  builder.emit({.kind = "write b", .lane = out, .writes = {b}});
  builder.emit({.kind = "read b", .lane = out, .reads = {b}});
  builder.emit({.kind = "write c", .lane = expert, .writes = {c}});
  builder.emit({.kind = "read c", .lane = expert, .reads = {c}});
  const Program program = std::move(builder).build().program;
  const PlaceAccount account = account_memory(program).nodes[0];
  EXPECT_EQ(account.live[0].bytes, 50) << "while a is written";
  EXPECT_EQ(account.live[2].bytes, 60) << "while b is written";
  for (const LiveBytes& at : account.live) EXPECT_EQ(at.classes[static_cast<size_t>(BufferClass::kResult)], at.bytes);
  EXPECT_EQ(account.live[4].bytes, 70) << "beside c either may be: an upper bound";
  EXPECT_EQ(account.peak_bytes, 70);
}

TEST(Accountant, PipelineFitsItsArithmetic) {
  const PipelineSize size{.layers = 4, .weight_bytes = 1 << 20, .boundary_bytes = 1 << 10};
  const Program program = pipeline_program(size).program;
  const MemoryAccount account = account_memory(program);
  const int64_t n = 1 << 20, b = 1 << 10;
  for (const PlaceAccount& gpu : account.gpus) {
    // Two windows, two gradients, five staging buffers, the loss; then the activation and the experts' workspace.
    EXPECT_EQ(gpu.peak_bytes, 4 * n + 5 * b + 8 + b + 4 * b);
    EXPECT_EQ(program.kind_of(gpu.peak_stage), "experts_forward");
    EXPECT_EQ(std::accumulate(gpu.at_peak.begin(), gpu.at_peak.end(), int64_t{0}), gpu.peak_bytes);
  }
  EXPECT_EQ(account.nodes[0].peak_bytes, 2 * (2 * n + 4 * (7 * n + b)));
  const std::string text = describe(program, account, 2);
  EXPECT_THAT(text, HasSubstr("gpu 0: peak 4.01 MiB at experts_forward layer 0 rank 0"));
  EXPECT_THAT(text, HasSubstr("numa 0: peak 60.0 MiB\n"));
  EXPECT_THAT(text, HasSubstr("state of layer 0 of rank 0"));
}

TEST(Accountant, ObjectsAndClassesAddUpToThePeak) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    const Program program = random_program(seed, {2, 2, 12, 50}).program;
    const MemoryAccount account = account_memory(program);
    for (const auto* places : {&account.gpus, &account.nodes}) {
      for (const PlaceAccount& place : *places) {
        int64_t objects = 0;
        for (const MemoryObject& object : place.objects) objects += object.bytes;
        EXPECT_EQ(objects, place.peak_bytes) << "seed " << seed << " " << place_name(place.place);
        EXPECT_EQ(std::accumulate(place.at_peak.begin(), place.at_peak.end(), int64_t{0}), place.peak_bytes);
      }
    }
  }
}

}  // namespace
}  // namespace oom::program
