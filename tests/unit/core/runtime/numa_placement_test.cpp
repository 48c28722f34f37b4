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
  NumaPlacement() { ops::configure_math(); }

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
  struct Trained {
    std::vector<double> losses;
    std::vector<float> weights;
  };
  Trained train(Session& session, const Plan& plan, Engine& engine) {
    engine.clear_state();
    initialise_random(session.model().description, 7, engine.state(), engine.pools());
    engine.publish_weights();
    engine.set_next_step(1);
    Trained trained;
    for (int step = 1; step <= 2; ++step) {
      std::minstd_rand generator(static_cast<unsigned>(step));
      std::vector<data::Batch> batches;
      for (int rank = 0; rank < plan.ranks; ++rank) {
        data::Batch& batch = batches.emplace_back(data::Batch{.sample_count = plan.sequences_per_rank(), .sequence_length = plan.workload.sequence_length});
        for (int64_t t = 0; t < plan.tokens_per_rank(); ++t) {
          batch.inputs.push_back(static_cast<int32_t>(generator() % kVocabulary));
          batch.targets.push_back(static_cast<int32_t>(generator() % kVocabulary));
          batch.positions.push_back(static_cast<int32_t>(t % batch.sequence_length));
        }
        batch.valid_targets = plan.tokens_per_rank();
      }
      trained.losses.push_back(engine.train_step(step, batches).loss());
    }
    engine.drain();
    for (int p = 0; p < static_cast<int>(session.model().description.parameters.size()); ++p) {
      std::vector<float> values(static_cast<size_t>(session.model().description.parameters[p].elements()));
      engine.state().read(p, optim::StatePart::kMaster, 0, values);
      trained.weights.insert(trained.weights.end(), values.begin(), values.end());
    }
    return trained;
  }
  Trained train(const char* host, const EngineOptions& options, const std::function<void(const PlannedRun&, Engine&)>& look) {
    Session session(config_, overrides(host));
    const PlannedRun run = make_plan(session, Purpose::kPlanOnly);
    const auto transfer = comm::DeviceTransfer::make(run.plan.device);
    RunState state;
    state.hyper = [](int64_t step) { return optim::AdamWStep{.learning_rate = 1e-3, .step = step}; };
    Engine engine({session.model().description, session.model().operators, run.plan, session.experts(run.plan.experts), session.activations(run.plan.activations), *transfer, {}, state}, options);
    if (look) look(run, engine);
    return train(session, run.plan, engine);
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

// What each node holds is what was accounted for it, asked of the system for that node, and no result depends on it.
TEST_P(NumaPlacement, EveryNodeHoldsWhatIsAccountedForIt) {
  hardware::Topology two = hardware::Topology::detect();
  two.nodes.push_back(two.nodes.front());  // one core at least is in both
  const Trained one = train("\"8GiB\"", {.topology = two}, {});  // as many threads
  const int64_t before = bound_pages();
  const Trained trained = train(kTwoNodes, {.topology = two}, [&](const PlannedRun& run, Engine& engine) {
    int64_t pages = 0;
    for (int node = 0; node < kNodes; ++node) {
      int64_t told = 0;
      for (const MemoryObject& object : run.account.nodes[node].objects) {
        if (object.name != "process and libraries" && !object.name.starts_with("device memory of rank")) told += object.bytes;
      }
      EXPECT_EQ(engine.host_arena_bytes(node), told) << "node " << node;
      EXPECT_GT(told, 0) << "node " << node;
      pages += told / memory::kPageBytes;
    }
    if (std::ifstream("/proc/self/numa_maps").good() && two.nodes.front().os_index == 0) {
      EXPECT_EQ(bound_pages() - before, pages);
    }
  });
  EXPECT_EQ(trained.losses, one.losses);
  EXPECT_TRUE(trained.weights == one.weights);
}

INSTANTIATE_TEST_SUITE_P(Strategies, NumaPlacement, ::testing::Values("local", "ep"), [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace oom::runtime
