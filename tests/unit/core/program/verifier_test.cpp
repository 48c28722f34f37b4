#include "program/verifier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "pipeline_program.h"
#include "random_program.h"

namespace oom::program {
namespace {

using ::testing::Contains;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string listed(const std::vector<Fault>& faults) {
  std::string text;
  for (const Fault& fault : faults) text += fault.message + "\n";
  return text;
}

// Random sizes, so that seeds also vary ranks and nodes.
Program random_of(unsigned seed) {
  const int ranks = 1 + static_cast<int>(seed % 3), nodes = 1 + static_cast<int>(seed % 2);
  return random_program(seed, {ranks, nodes, 4 + static_cast<int>(seed % 9), 30 + static_cast<int>(seed % 40)}).program;
}

// Drops every edge in turn. Returns how many there were; every drop must be a fault.
int expect_every_edge_needed(const Program& program, const std::string& what) {
  int edges = 0;
  for (size_t id = 0; id < program.stages.size(); ++id) {
    for (size_t e = 0; e < program.stages[id].after.size(); ++e, ++edges) {
      Program mutant = program;
      auto& after = mutant.stages[id].after;
      after.erase(after.begin() + static_cast<std::ptrdiff_t>(e));
      EXPECT_THAT(verify(mutant), Not(IsEmpty())) << what << ": dropped " << stage_name(program, program.stages[id].after[e].stage) << " before "
                                                  << stage_name(program, static_cast<StageId>(id));
    }
  }
  return edges;
}

TEST(Verifier, AcceptsThePipeline) {
  const Program program = pipeline_program().program;
  EXPECT_THAT(verify(program), IsEmpty()) << listed(verify(program)) << describe(program);
}

TEST(Verifier, AcceptsRandomPrograms) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    const Program program = random_of(seed);
    const auto faults = verify(program);
    ASSERT_THAT(faults, IsEmpty()) << "seed " << seed << "\n" << listed(faults) << describe(program);
  }
}

TEST(Verifier, CatchesEveryDroppedEdgeOfThePipeline) { EXPECT_GT(expect_every_edge_needed(pipeline_program().program, "pipeline"), 100); }

TEST(Verifier, CatchesEveryDroppedEdgeOfRandomPrograms) {
  int edges = 0;
  for (unsigned seed = 0; seed < 60; ++seed) edges += expect_every_edge_needed(random_of(seed), cat("seed ", seed));
  EXPECT_GT(edges, 1000);
}

TEST(Verifier, CatchesEveryPairOfBuffersPutIntoTheSameBytes) {
  const Program program = pipeline_program().program;
  int pairs = 0;
  for (size_t a = 0; a < program.buffers.size(); ++a) {
    for (size_t b = a + 1; b < program.buffers.size(); ++b) {
      const Buffer &first = program.buffers[a], &second = program.buffers[b];
      const bool pool = first.name.find("window") == 0 || first.name.find("gradient") == 0;
      if (first.place != second.place || first.bytes != second.bytes || !pool || first.buffer_class != second.buffer_class) continue;
      ++pairs;
      Program mutant = program;
      mutant.buffers[b].storage = static_cast<BufferId>(a);
      EXPECT_THAT(verify(mutant), Contains(Field(&Fault::kind, FaultKind::kReuse))) << first.name << " in place of " << second.name;
    }
  }
  EXPECT_GE(pairs, 6);
}

TEST(Verifier, CatchesReadsOfOldVersions) {
  int reads = 0;
  for (unsigned seed = 0; seed < 60; ++seed) {
    const Program program = random_of(seed);
    for (size_t id = 0; id < program.stages.size(); ++id) {
      for (size_t i = 0; i < program.stages[id].accesses.size(); ++i) {
        const Access& access = program.stages[id].accesses[i];
        if (access.mode != AccessMode::kRead || access.version == 0) continue;
        Program mutant = program;
        --mutant.stages[id].accesses[i].version;
        EXPECT_THAT(verify(mutant), Not(IsEmpty())) << "seed " << seed << " " << stage_name(program, static_cast<StageId>(id));
        ++reads;
      }
    }
  }
  EXPECT_GT(reads, 300);
}

TEST(Verifier, CatchesAShardUpdatedTwiceOrNever) {
  Program twice = pipeline_program().program;
  StageId updater = kNone;
  for (size_t id = 0; id < twice.stages.size(); ++id) {
    if (twice.stages[id].updates_shard == 3) updater = static_cast<StageId>(id);
  }
  Program never = twice;
  never.stages[updater].updates_shard = kNone;
  EXPECT_THAT(listed(verify(never)), HasSubstr("shard 'experts of layer 3 rank 0' has 0 updaters"));
  twice.stages[0].updates_shard = 3;
  EXPECT_THAT(listed(verify(twice)), HasSubstr("shard 'experts of layer 3 rank 0' has 2 updaters in a step, must have one: weights_in layer 0"));
}

TEST(Verifier, CatchesCollectivesReorderedOnOneRank) {
  const Program program = pipeline_program().program;
  int pairs = 0;
  StageId before = kNone;
  for (size_t id = 0; id < program.stages.size(); ++id) {
    const Stage& stage = program.stages[id];
    if (stage.collective == kNone || stage.lane.index != 1) continue;
    if (before != kNone) {
      Program mutant = program;
      std::swap(mutant.stages[before].collective, mutant.stages[id].collective);
      EXPECT_THAT(verify(mutant), Contains(Field(&Fault::kind, FaultKind::kCollective))) << stage_name(program, static_cast<StageId>(id));
      ++pairs;
    }
    before = static_cast<StageId>(id);
  }
  EXPECT_EQ(pairs, 4 * 6 - 1);
}

TEST(Verifier, CatchesAMissingMember) {
  Program program = pipeline_program().program;
  for (Stage& stage : program.stages) {
    if (stage.collective == 5 && stage.lane.index == 0) stage.collective = kNone;
  }
  EXPECT_THAT(listed(verify(program)), HasSubstr("collective 5 of ep has 1 members, must have one on each of its 2 ranks"));
}

TEST(Verifier, CatchesACommunicatorOnTwoLanes) {
  ProgramBuilder builder({0, 0}, 1);
  for (Lane lane : {Lane::kComm, Lane::kCompute}) {
    const CollectiveId id = builder.add_collective("ep", {0, 1});
    for (int r = 0; r < 2; ++r) builder.emit({.kind = lane_name(lane), .lane = {lane, r}, .collective = id});
  }
  EXPECT_THAT(listed(verify(std::move(builder).build().program)), HasSubstr("use communicator ep from two lanes"));
}

TEST(Verifier, CatchesIssuingThreadsThatWaitForEachOther) {
  // Rank 0 waits on its host thread for its half of a collective, rank 1 waits on its host thread for that wait, and only then would
  // launch the other half. As data flow alone this is fine; with one issuing thread a rank it never ends.
  ProgramBuilder builder({0, 0}, 1);
  const BufferId counts = builder.add_buffer({.name = "counts", .place = Place::numa(0), .bytes = 8});
  const BufferId total = builder.add_buffer({.name = "total", .place = Place::numa(0), .bytes = 8});
  const CollectiveId gather = builder.add_collective("ep", {0, 1});
  builder.emit({.kind = "gather", .lane = {Lane::kComm, 0}, .writes = {counts}, .collective = gather});
  builder.emit({.kind = "sum", .lane = {Lane::kIssue, 0}, .reads = {counts}, .writes = {total}});
  builder.emit({.kind = "read_sum", .lane = {Lane::kIssue, 1}, .reads = {total}});
  builder.emit({.kind = "gather", .lane = {Lane::kComm, 1}, .collective = gather});
  const auto faults = verify(std::move(builder).build().program);
  ASSERT_EQ(faults.size(), 1u) << listed(faults);
  EXPECT_EQ(faults[0].kind, FaultKind::kHostOrder);
  EXPECT_THAT(faults[0].message, HasSubstr("read_sum rank 1"));
}

TEST(Verifier, CatchesStagesThatNeverStart) {
  Program program = pipeline_program().program;
  program.stages[2].after.push_back({40, 0});
  program.stages[40].after.push_back({2, 0});
  const auto faults = verify(program);
  ASSERT_EQ(faults.size(), 1u) << listed(faults);
  EXPECT_EQ(faults[0].kind, FaultKind::kDeadlock);
}

TEST(Verifier, CatchesTransientsThatAreNotThere) {
  Program program = pipeline_program().program;
  for (Stage& stage : program.stages) {
    for (Access& access : stage.accesses) {
      if (program.buffers[access.buffer].name == "activation of rank 1" && access.mode == AccessMode::kRead) access.version = 0;
    }
  }
  EXPECT_THAT(listed(verify(program)), HasSubstr("reads transient buffer 'activation of rank 1', which no stage of the step has written"));
}

TEST(Verifier, CatchesTransientsOnOtherLanes) {
  Program program = pipeline_program().program;
  for (Buffer& buffer : program.buffers) {
    if (buffer.name == "window 0 of rank 0") buffer.lifetime = Lifetime::kTransient;
  }
  EXPECT_THAT(verify(program), Contains(Field(&Fault::kind, FaultKind::kTransient)));
}

// Memory is taken and given back in the order of the compute lane: a copy into it comes after the one, and before the other.
class SharedTransient : public ::testing::Test {
 protected:
  SharedTransient() {
    ProgramBuilder builder({0}, 1);
    const LaneId compute{Lane::kCompute, 0};
    const auto transient = [&](const char* name) { return builder.add_buffer({.name = name, .place = Place::gpu(0), .bytes = 64, .lifetime = Lifetime::kTransient}); };
    const BufferId in = transient("in"), out = transient("out");
    reserve_ = builder.emit({.kind = "reserve", .lane = compute, .writes = {in}});
    load_ = builder.emit({.kind = "load", .lane = {Lane::kH2d, 0}, .writes = {in}});
    use_ = builder.emit({.kind = "use", .lane = compute, .reads = {in}, .writes = {out}});
    store_ = builder.emit({.kind = "store", .lane = {Lane::kD2h, 0}, .reads = {out}});
    release_ = builder.emit({.kind = "release", .lane = compute, .reads = {out}});
    program_ = std::move(builder).build().program;
  }
  std::string faults() const { return listed(verify(program_)); }

  StageId reserve_, load_, use_, store_, release_;
  Program program_;
};

TEST_F(SharedTransient, IsAccepted) { EXPECT_EQ(faults(), ""); }

TEST_F(SharedTransient, CopyBeforeTheMemoryIsThere) {
  program_.stages[load_].after.clear();
  EXPECT_THAT(faults(), HasSubstr("load rank 0 (h2d, stage 1) does not wait until reserve rank 0 (compute, stage 0) has made transient buffer 'in' of gpu 0"));
}

TEST_F(SharedTransient, ReleaseBeforeTheCopyIsDone) {
  program_.stages[release_].after.clear();
  EXPECT_THAT(faults(), HasSubstr("releases transient buffer 'out' of gpu 0 while store rank 0 (d2h, stage 3) may still use it"));
}

TEST_F(SharedTransient, ReleaseBeforeAnInputHasArrived) {
  program_.stages[use_].after.clear();
  EXPECT_THAT(faults(), HasSubstr("releases transient buffer 'in' of gpu 0 while load"));
}

TEST_F(SharedTransient, ReaderOfTheStepBeforeIsNotEnough) {
  program_.stages[release_].after = {{store_, 1}};
  EXPECT_THAT(faults(), HasSubstr("releases transient buffer 'out'"));
}

TEST_F(SharedTransient, CopyTouchesItLast) {
  program_.stages[release_].accesses.clear();
  EXPECT_THAT(faults(), HasSubstr("store rank 0 (d2h, stage 3) is the first or the last to touch transient buffer 'out'"));
}

TEST_F(SharedTransient, MadeElsewhere) {
  program_.stages[reserve_].accesses.clear();
  program_.stages[load_].accesses.front().version = 1;
  program_.stages[use_].accesses.front().version = 1;
  EXPECT_THAT(faults(), HasSubstr("load rank 0 (h2d, stage 1) is the first or the last to touch transient buffer 'in'"));
}

TEST_F(SharedTransient, TouchedByAPool) {
  program_.stages[store_].lane = {Lane::kUpdate, 0};
  EXPECT_THAT(faults(), HasSubstr("touches transient buffer 'out' of gpu 0; only stream lanes of that rank may"));
}

TEST(Verifier, SurvivesNonsense) {
  Program program = pipeline_program().program;
  program.stages[0].after.push_back({100000, 0});
  program.stages[1].accesses.push_back({-5, 1, AccessMode::kRead});
  program.stages[2].lane = {Lane::kH2d, 9};
  program.stages[3].collective = 400;
  program.buffers[1].storage = 9999;
  EXPECT_EQ(verify(program).size(), 5u) << listed(verify(program));
  EXPECT_THROW(require_valid(program), Error);
}

TEST(Verifier, IsFastEnoughToRunOnEveryPlan) {
  const Program program = pipeline_program({.ranks = 4, .layers = 94}).program;
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(verify(program), IsEmpty());
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  RecordProperty("stages", static_cast<int>(program.stages.size()));
  RecordProperty("milliseconds", static_cast<int>(seconds * 1e3));
  EXPECT_LT(seconds, 5.0) << program.stages.size() << " stages";
}

}  // namespace
}  // namespace oom::program
