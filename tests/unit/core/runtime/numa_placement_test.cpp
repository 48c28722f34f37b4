// Plans of two NUMA nodes on a machine that is said to have them: every buffer is on the node of its rank, counted there, and allocated there.
#include <fstream>
#include <set>
#include <sstream>

#include "engine_run.h"

namespace oom::runtime {
namespace {

constexpr int kNodes = 2;

class NumaPlacement : public ::testing::TestWithParam<const char*> {
 protected:
  /// Two ranks, each on a node of its own; of everything that streams, some.
  PlannedRun plan(Session& session) {
    PlannedRun run = make_plan(session, Purpose::kPlanOnly);
    EXPECT_EQ(run.plan.numa_nodes, kNodes);
    EXPECT_EQ(run.plan.node_of_rank, (std::vector<int>{0, 1}));
    return run;
  }
  std::vector<std::string> overrides(const char* host) const {
    return {cat("engine.experts=", GetParam()), cat("budget.host=", host), "train.updates=overlapped", "state.weights=convert", "offload.keep_attention=[1]", "offload.keep_boundaries=[0, 2]",
            "offload.boundaries_on_gpu=none", "offload.buffers=1", "output.expert_load_every=0"};
  }
  EngineRun run_of(const char* host, const hardware::Topology& topology) { return {config_, overrides(host), {.topology = topology}, nullptr, Purpose::kPlanOnly}; }

  struct Trained {
    std::vector<double> losses;
    std::vector<float> state;
  };
  static Trained train(EngineRun& run) {
    Trained trained;
    for (int step = 1; step <= 2; ++step) trained.losses.push_back(run.train(step).loss());
    trained.state = run.state();
    return trained;
  }

  oom::testing::ScratchFolder folder_;
  std::string config_ = write_run(folder_);
};

constexpr const char* kTwoNodes = "[\"4GiB\", \"4GiB\"]";

// Ranks copy to and from the node beside their GPU, and shards are updated where their state is.
TEST_P(NumaPlacement, EveryBufferIsOnTheNodeOfItsRank) {
  Session session(config_, overrides(kTwoNodes));
  const PlannedRun run = plan(session);
  std::set<BufferClass> seen[kNodes];
  for (const Stage& stage : run.program.stages) {
    const bool copies = stage.lane.lane == Lane::kH2d || stage.lane.lane == Lane::kD2h || stage.lane.lane == Lane::kD2hExpert;
    const bool works = stage.lane.lane == Lane::kUpdate || stage.lane.lane == Lane::kPrepare;
    if (!copies && !works) continue;
    const int node = works ? stage.lane.index : run.plan.node_of_rank.at(stage.lane.index);
    for (const Access& access : stage.accesses) {
      const Buffer& buffer = run.program.buffers.at(access.buffer);
      // What all ranks share is a few bytes.
      if (buffer.place.kind != Place::Kind::kNuma || buffer.bytes <= 64) continue;
      EXPECT_EQ(buffer.place.index, node) << buffer.name << " in " << run.program.kind_of(static_cast<StageId>(&stage - run.program.stages.data()));
      seen[node].insert(buffer.buffer_class);
    }
  }
  for (const auto& classes : seen) {
    for (const BufferClass each : {BufferClass::kState, BufferClass::kGradient, BufferClass::kBoundary, BufferClass::kResult, BufferClass::kStaging}) EXPECT_TRUE(classes.contains(each)) << buffer_class_name(each);
  }
}

/// Pages of this process that are bound to the machine's node 0, which is there on every machine.
int64_t bound_pages() {
  std::ifstream maps("/proc/self/numa_maps");
  int64_t pages = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("prefer:0") == std::string::npos && line.find("prefer=static:0") == std::string::npos) continue;
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      if (word.starts_with("anon=")) pages += std::stoll(word.substr(5));
    }
  }
  return pages;
}

/// Whether this system binds memory, and says so: containers may forbid the one, and kernels lack the other.
bool binds_pages() {
  const int64_t before = bound_pages();
  const memory::HostMapping page(memory::kPageBytes, 0, "probe");
  *page.data() = std::byte{1};
  return bound_pages() == before + 1;
}

// What each node holds is what was accounted for it, asked of the system for that node, and no result depends on it.
TEST_P(NumaPlacement, EveryNodeHoldsWhatIsAccountedForIt) {
  hardware::Topology two = hardware::Topology::detect();
  two.nodes.push_back(two.nodes.front());  // one core at least is in both
  Trained one;
  {
    EngineRun run = run_of("\"8GiB\"", two);  // as many threads
    one = train(run);
  }
  const int64_t before = bound_pages();
  EngineRun run = run_of(kTwoNodes, two);
  int64_t pages = 0;
  for (int node = 0; node < kNodes; ++node) {
    int64_t told = 0;
    for (const MemoryObject& object : run.planned().account.nodes[node].objects) {
      if (object.name != "process and libraries" && !object.name.starts_with("device memory of rank")) told += object.bytes;
    }
    EXPECT_EQ(run.engine().host_arena_bytes(node), told) << "node " << node;
    EXPECT_GT(told, 0) << "node " << node;
    pages += told / memory::kPageBytes;
  }
  if (binds_pages() && two.nodes.front().os_index == 0) {
    EXPECT_EQ(bound_pages() - before, pages);
  }
  const Trained trained = train(run);
  EXPECT_EQ(trained.losses, one.losses);
  EXPECT_TRUE(trained.state == one.state);
}

INSTANTIATE_TEST_SUITE_P(Strategies, NumaPlacement, ::testing::Values("local", "ep"), [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace oom::runtime
