#include "observe/run_record.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "oom/program.h"

namespace oom::observe {
namespace {

using Json = nlohmann::ordered_json;

constexpr LaneId kCompute{Lane::kCompute, 0};

// A window, and one transient between two stages of a millisecond each.
struct Judged {
  Judged() {
    ProgramBuilder builder({0}, 1);
    builder.add_buffer({.name = "window", .place = Place::gpu(0), .bytes = 1000, .buffer_class = BufferClass::kWorkingWeight});
    const BufferId x = builder.add_buffer({.name = "x", .place = Place::gpu(0), .bytes = 20, .buffer_class = BufferClass::kBoundary, .lifetime = Lifetime::kTransient});
    builder.emit({.kind = "begin", .layer = 3, .lane = kCompute, .cost = {.fixed_seconds = 1e-3}});
    builder.emit({.kind = "make", .layer = 3, .lane = kCompute, .writes = {x}, .cost = {.fixed_seconds = 1e-3}});
    builder.emit({.kind = "use", .layer = 3, .lane = kCompute, .reads = {x}, .cost = {.fixed_seconds = 1e-3}});
    builder.emit({.kind = "use", .layer = 4, .lane = kCompute, .cost = {.fixed_seconds = 1e-3}});
    program = std::move(builder).build().program;
    account = account_memory(program);
    simulation = simulate(program, {});
  }
  Program program;
  MemoryAccount account;
  Simulation simulation;
};

TEST(RunRecord, SaysWhenMemoryChanges) {
  const Judged judged;
  const Json places = memory_record(judged.program, judged.account, judged.simulation, {.gpu_bytes = {2000}, .headroom_bytes = 100, .host_bytes = {5000}});
  ASSERT_EQ(places.size(), 2u);
  const Json& gpu = places[0];
  EXPECT_EQ(gpu["place"], "gpu 0");
  EXPECT_EQ(gpu["budget_bytes"], 2000);
  EXPECT_EQ(gpu["headroom_bytes"], 100);
  EXPECT_EQ(gpu["peak_bytes"], 1020);
  EXPECT_EQ(gpu["classes"], Json({"working_weight", "boundary"})) << gpu.dump();
  EXPECT_EQ(gpu["at_peak"], Json({1000, 20}));
  EXPECT_EQ(gpu["bytes"], Json({{1000, 0}, {1000, 20}, {1000, 0}}));
  ASSERT_EQ(gpu["times"].size(), 3u);
  EXPECT_NEAR(gpu["times"][1].get<double>(), 1e-3, 1e-9);
  EXPECT_NEAR(gpu["times"][2].get<double>(), 3e-3, 1e-9);
  EXPECT_EQ(gpu["largest"][0]["name"], "window");
  EXPECT_EQ(places[1]["budget_bytes"], 5000);
}

TEST(RunRecord, WithoutBudgetsNoneIsStated) {
  const Judged judged;
  const Json places = memory_record(judged.program, judged.account, judged.simulation, {});
  EXPECT_FALSE(places[0].contains("budget_bytes"));
}

TEST(RunRecord, DrawsEqualNeighboursOfTheCriticalPathTogether) {
  const Judged judged;
  const Json predicted = prediction_record(judged.program, judged.simulation);
  EXPECT_NEAR(predicted["step_seconds"].get<double>(), 4e-3, 1e-9);
  const Json& path = predicted["critical_path"];
  ASSERT_GE(path.size(), 3u);
  const Json& last = path.back();
  EXPECT_EQ(last["kind"], "use");
  EXPECT_EQ(last["stages"], 2);
  EXPECT_EQ(last["first_layer"], 3);
  EXPECT_EQ(last["last_layer"], 4);
  EXPECT_NEAR(last["end"].get<double>() - last["start"].get<double>(), 2e-3, 1e-9);
}

}  // namespace
}  // namespace oom::observe
