#include "program/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "pipeline_program.h"
#include "program/executor.h"

namespace oom::program {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// The pipeline with actions that do nothing, two steps on the CPU device.
struct Traced {
  Traced() {
    BuiltProgram built = pipeline_program({.layers = 2});
    program = built.program;
    predicted = simulate(program, {});
    auto executor = make_cpu_executor(std::move(built));
    executor->record_times(true);
    for (int step = 5; step < 7; ++step) {
      executor->run_step(step);
      executor->drain();
      measured.push_back({step, executor->stage_times()});
    }
  }
  Program program;
  Simulation predicted;
  std::vector<MeasuredStep> measured;
};

TEST(Trace, HoldsEveryStageOfEveryMeasuredStepAndOfThePrediction) {
  const Traced traced;
  const json trace = json::parse(chrome_trace(traced.program, &traced.predicted, traced.measured));
  std::map<std::string, int> processes;
  std::map<int, int> stages_of_process;
  double first = 1e9;
  for (const json& event : trace["traceEvents"]) {
    if (event["name"] == "process_name") processes[event["args"]["name"]] = event["pid"];
    if (event["ph"] != "X") continue;
    ++stages_of_process[event["pid"]];
    EXPECT_GE(event["dur"].get<double>(), 0);
    first = std::min(first, event["ts"].get<double>());
  }
  std::set<std::string> names;
  for (const auto& [name, process] : processes) names.insert(name);
  EXPECT_THAT(names, ::testing::ElementsAre("measured node 0", "measured rank 0", "measured rank 1", "predicted node 0", "predicted rank 0", "predicted rank 1"));
  int of_rank0 = 0;
  for (const Stage& stage : traced.program.stages) of_rank0 += stage.lane.index == 0 && !is_pool_lane(stage.lane.lane);
  EXPECT_EQ(stages_of_process[processes["measured rank 0"]], 2 * of_rank0);
  EXPECT_EQ(stages_of_process[processes["predicted rank 0"]], of_rank0);
  EXPECT_EQ(stages_of_process[processes["predicted node 0"]], 4);
  EXPECT_DOUBLE_EQ(first, 0);
}

// Viewers drop events before time 0, and what the prediction prefetches comes before its first compute stage.
TEST(Trace, BeginsWithThePredictionWhereThatComesFirst) {
  Traced traced;
  traced.measured.erase(traced.measured.begin());
  size_t copy = 0;
  while (traced.program.stages[copy].lane.lane != Lane::kH2d) ++copy;
  traced.predicted.stages[copy] = {-1e3, -1e3 + 1};
  const json trace = json::parse(chrome_trace(traced.program, &traced.predicted, traced.measured));
  double first = 1e9, first_measured = 1e9;
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    first = std::min(first, event["ts"].get<double>());
    if (event["args"].contains("step")) first_measured = std::min(first_measured, event["ts"].get<double>());
  }
  EXPECT_DOUBLE_EQ(first, 0);
  EXPECT_GT(first_measured, 0);
}

TEST(Trace, LeavesOutWhatWasNotRecorded) {
  Traced traced;
  traced.measured.resize(1);
  traced.measured[0].stages.assign(traced.program.stages.size(), {});
  traced.measured[0].stages[3] = {10, 11};
  const json trace = json::parse(chrome_trace(traced.program, nullptr, traced.measured));
  int stages = 0;
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    ++stages;
    EXPECT_EQ(event["args"]["stage"], 3);
    EXPECT_EQ(event["ts"], 0);
    EXPECT_EQ(event["dur"], 1e6);
  }
  EXPECT_EQ(stages, 1);
}

TEST(Trace, MeasuredStagesSayWhatTheyDraw) {
  Traced traced;
  for (size_t id = 0; id < traced.program.stages.size(); ++id) traced.program.stages[id].cost = {.gemm_flops = 3.0 * static_cast<double>(id), .sequence_length = 7};
  traced.program.stages[2].cost.host_bytes[1] = 40;
  const json trace = json::parse(chrome_trace(traced.program, &traced.predicted, traced.measured));
  int measured = 0;
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] != "X" || !event["args"].contains("step")) continue;
    ++measured;
    const int id = event["args"]["stage"];
    json expected{{"sequence_length", 7}};
    if (id > 0) expected["gemm_flops"] = 3 * id;
    if (id == 2) expected["host_bytes"] = {0, 40};
    EXPECT_EQ(event["args"]["cost"], expected) << id;
  }
  EXPECT_EQ(measured, 2 * static_cast<int>(traced.program.stages.size()));
}

// work 1 waits for a copy, that copy for an update; work 2 for nothing but the lane.
TEST(Trace, MeasuredWaitsBelongToWhatWorkedInThem) {
  ProgramBuilder builder({0}, 1);
  const BufferId slot = builder.add_buffer({.name = "slot", .place = Place::numa(0), .bytes = 8});
  const BufferId window = builder.add_buffer({.name = "window", .place = Place::gpu(0), .bytes = 8});
  builder.emit({.kind = "work", .lane = {Lane::kCompute, 0}});
  builder.emit({.kind = "update", .lane = {Lane::kUpdate, 0}, .writes = {slot}});
  builder.emit({.kind = "copy", .lane = {Lane::kH2d, 0}, .reads = {slot}, .writes = {window}});
  builder.emit({.kind = "work", .lane = {Lane::kCompute, 0}, .reads = {window}});
  builder.emit({.kind = "work", .lane = {Lane::kCompute, 0}});
  const Program program = std::move(builder).build().program;
  const MeasuredStep step{0, {{10, 12}, {11, 15}, {15, 16}, {17, 18}, {18, 19}}};
  const std::vector<ExposedWait> waits = exposed_waits(program, step);
  ASSERT_EQ(waits.size(), 2u);
  EXPECT_EQ(program.kinds[waits[0].kind], "update");
  EXPECT_DOUBLE_EQ(waits[0].seconds, 3) << "from the end of the first work to the end of the update";
  EXPECT_EQ(program.kinds[waits[1].kind], "copy");
  EXPECT_DOUBLE_EQ(waits[1].seconds, 2) << "and until the second work began";
  const std::string text = describe(program, simulate(program, {}), step, 9);
  EXPECT_THAT(text, ::testing::ContainsRegex("update update +[0-9.]+ +3000.000"));
}

TEST(Trace, ComparesSecondsByKind) {
  Traced traced;
  MeasuredStep step{5, std::vector<StageTime>(traced.program.stages.size())};
  for (size_t id = 0; id < step.stages.size(); ++id) {
    if (traced.program.kind_of(static_cast<StageId>(id)) == "update") step.stages[id] = {1, 3};
  }
  const auto kinds = compare_kinds(traced.program, traced.predicted, step);
  EXPECT_EQ(traced.program.kinds[kinds[0].kind], "update");
  EXPECT_EQ(kinds[0].stages, 4);
  EXPECT_DOUBLE_EQ(kinds[0].measured_seconds, 8);
  EXPECT_GT(kinds[0].predicted_seconds, 0);
  const std::string text = describe(traced.program, traced.predicted, step, 2.5);
  EXPECT_THAT(text, HasSubstr("2500.000"));
  EXPECT_THAT(text, HasSubstr("update update"));
  EXPECT_THAT(text, HasSubstr("8000.000"));
}

}  // namespace
}  // namespace oom::program
