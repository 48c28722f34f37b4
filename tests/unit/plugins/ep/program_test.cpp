// What programs of the exchange contain: bytes between GPUs, what may run beside what, one order on every rank.
#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>

#include "expert_parallel_run.h"

namespace oom::runtime {
namespace {

using Overrides = std::vector<std::string>;

constexpr int kLayers = 3, kTopK = 4, kHidden = 64;

Overrides operator+(Overrides left, const Overrides& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

// Nothing is left to the planner.
const Overrides kStated{"train.global_batch=32", "train.updates=overlapped", "state.resident=none", "state.resident_ordinary=none", "offload.attention_head_group=0", "offload.moe_chunk=1000000",
                        "offload.sub_batch=1000", "offload.keep_attention=none", "offload.keep_boundaries=all", "offload.buffers=3"};

class ExchangeProgram : public ExpertParallelRun {
 protected:
  /// By stage, for those of the exchange: 0 in the forward, 1 in the backward; -1 for others.
  static std::vector<int> passes(const Program& program) {
    std::map<std::tuple<KindId, int, int, int>, int> seen;
    std::vector<int> passes;
    for (const Stage& stage : program.stages) {
      const std::string& kind = program.kinds[stage.kind];
      const bool travels = kind == "experts_dispatch" || kind == "experts_return";
      passes.push_back(travels ? seen[{stage.kind, stage.layer, stage.part, stage.rank}]++ : kind == "experts_forward" ? 0 : kind == "experts_backward" ? 1 : -1);
    }
    EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](const auto& entry) { return entry.second == 2; })) << "no stage of the exchange runs but in a forward and a backward";
    return passes;
  }
};

// 2 k N h b (P - 1) / P in a pass with even routing, whatever the chunks and rounds: the last chunk of 7 is smaller. Beside each row that arrives travels its
// expert's number or its weight, of 4 bytes. A layer that does not retain brings its inputs once more in the backward.
TEST_F(ExchangeProgram, BytesBetweenGpusAreThoseOfEvenRouting) {
  for (const int ranks : {2, 4, 8}) {
    const int element = ranks == 4 ? 2 : 4;
    for (const Overrides& cut : {Overrides{}, {"ep.routing_chunk=64"}, {"ep.routing_chunk=7"}, {"ep.routing_chunk=7", "ep.receive_rows=20"}}) {
      for (const bool retains : {false, true}) {
        const Overrides more{cat("engine.ranks=", ranks), cat("precision.compute=", element == 2 ? "bf16" : "fp32"), cat("ep.retain=", retains ? "all" : "none"), "ep.retain_rows=1000000"};
        const PlannedRun run = plan(kStated + cut + more);
        const std::vector<int> pass = passes(run.program);
        std::map<std::tuple<int, int, int>, double> sent;  // pass, layer, rank
        for (size_t id = 0; id < run.program.stages.size(); ++id) {
          const Stage& stage = run.program.stages[id];
          if (pass[id] >= 0 && stage.lane.lane == Lane::kComm) sent[{pass[id], stage.layer, stage.rank}] += stage.cost.peer_bytes;
        }
        ASSERT_EQ(sent.size(), 2u * kLayers * ranks);
        const double rows = static_cast<double>(kTopK * run.plan.tokens_per_rank()) * (ranks - 1) / ranks, row = kHidden * element;
        for (const auto& [key, bytes] : sent) {
          const int tensors = std::get<0>(key) == 0 || retains ? 2 : 3, values = std::get<0>(key) == 0 ? 1 : tensors;
          EXPECT_DOUBLE_EQ(bytes, rows * (tensors * row + 4 * values)) << ::testing::PrintToString(cut + more) << " pass, layer, rank: " << ::testing::PrintToString(key);
        }
      }
    }
  }
}

// Products are those of the rows, however they are cut.
TEST_F(ExchangeProgram, ProductsAreThoseOfTheRows) {
  const auto flops = [&](const Overrides& cut) {
    std::map<std::string, double> sums;
    const PlannedRun run = plan(kStated + Overrides{"engine.ranks=4"} + cut);
    for (const Stage& stage : run.program.stages) sums[run.program.kinds[stage.kind]] += stage.cost.gemm_flops;
    return std::pair(sums.at("experts_forward"), sums.at("experts_backward"));
  };
  const auto whole = flops({});
  EXPECT_DOUBLE_EQ(whole.first, kLayers * 4 * 128 * kTopK * 6.0 * kHidden * 32);
  for (const Overrides& cut : {Overrides{"ep.routing_chunk=7"}, {"ep.routing_chunk=7", "ep.receive_rows=10"}, {"ep.receive_rows=50"}}) EXPECT_EQ(flops(cut), whole) << cut[0];
}

// The rows of a visit may travel while those of the visit before are computed.
TEST_F(ExchangeProgram, DispatchWaitsForNoVisitJustBefore) {
  for (const Overrides& more : {Overrides{"ep.routing_chunk=24"}, {"ep.routing_chunk=24", "ep.retain=all"}, {"ep.receive_rows=120", "ep.retain=[1]", "state.resident=[0, 1]"}, {"ep.routing_chunk=40", "ep.receive_rows=100", "train.clip_norm=0.5", "train.updates=deferred"}}) {
    const PlannedRun run = plan(kStated + Overrides{"engine.ranks=4"} + more);
    const Program& program = run.program;
    const std::vector<int> pass = passes(program);
    // Whose end each stage waits for, within the step: the one before on its lane, and its edges.
    std::vector<std::vector<StageId>> before(program.stages.size());
    std::map<std::pair<Lane, int>, StageId> last;
    for (StageId id = 0; id < static_cast<StageId>(program.stages.size()); ++id) {
      const Stage& stage = program.stages[id];
      const auto [lane, first] = last.try_emplace({stage.lane.lane, stage.lane.index}, id);
      if (!first) before[id].push_back(std::exchange(lane->second, id));
      for (const Edge& edge : stage.after) {
        if (edge.distance == 0) before[id].push_back(edge.stage);
      }
    }
    // Visits of the same layer and pass whose experts a stage waits for, on whatever rank.
    const auto visits_before = [&](StageId from) {
      std::set<int> visits;
      std::vector<bool> seen(program.stages.size());
      for (std::vector<StageId> open{from}; !open.empty();) {
        const StageId id = open.back();
        open.pop_back();
        if (seen[id]) continue;
        seen[id] = true;
        if (pass[id] == pass[from] && program.stages[id].layer == program.stages[from].layer && program.stages[id].lane.lane == Lane::kCompute) visits.insert(program.stages[id].part);
        open.insert(open.end(), before[id].begin(), before[id].end());
      }
      return visits;
    };
    std::array<int, 2> checked{};
    for (StageId id = 0; id < static_cast<StageId>(program.stages.size()); ++id) {
      const Stage& stage = program.stages[id];
      if (pass[id] < 0 || stage.lane.lane != Lane::kComm) continue;
      const std::set<int> visits = visits_before(id);
      if (program.kinds[stage.kind] == "experts_return") {
        EXPECT_TRUE(visits.contains(stage.part)) << stage_name(program, id) << " has nothing to return";
        continue;
      }
      EXPECT_FALSE(visits.contains(stage.part - 1)) << stage_name(program, id) << " waits for the experts of the visit before";
      EXPECT_TRUE(std::none_of(visits.begin(), visits.end(), [&](int visit) { return visit >= stage.part; })) << stage_name(program, id);
      checked[pass[id]] += stage.part > 0;
    }
    EXPECT_GT(checked[0], 2 * 4 * kLayers) << ::testing::PrintToString(more);
    EXPECT_EQ(checked[0], checked[1]);
  }
}

// The host waits for counts once a layer, in the forward; from the head on it waits for nothing of a layer.
TEST_F(ExchangeProgram, CountsMeetInTheForwardAlone) {
  for (const Overrides& more : {Overrides{}, {"ep.routing_chunk=7", "ep.receive_rows=30", "ep.retain=[1]", "ep.retain_rows=28"}, {"ep.routing_chunk=24", "offload.keep_boundaries=1+1", "train.clip_norm=0.5", "train.updates=deferred"}}) {
    const PlannedRun run = plan(kStated + Overrides{"engine.ranks=4"} + more);
    bool head = false;
    int met = 0;
    for (const Stage& stage : run.program.stages) {
      head = head || (stage.layer == kHeadLayer && stage.lane.lane == Lane::kCompute);
      if (stage.lane.lane != Lane::kIssue || stage.layer < 0) continue;
      EXPECT_EQ(run.program.kinds[stage.kind], "counts_meet");
      EXPECT_FALSE(head) << "layer " << stage.layer << " makes the host wait in the backward";
      ++met;
    }
    EXPECT_TRUE(head);
    EXPECT_EQ(met, kLayers * 4);
  }
}

TEST_F(ExchangeProgram, EveryRankSendsInOneOrder) {
  for (const Overrides& more : {Overrides{}, {"ep.routing_chunk=7", "ep.receive_rows=30", "ep.retain=[1]", "ep.retain_rows=28"}, {"ep.routing_chunk=24", "state.resident=[1]", "state.resident_ordinary=all"},
                                {"ep.receive_rows=50", "train.clip_norm=0.5", "train.updates=deferred", "transfer.ordinary_delivery=shard"}}) {
    for (const int ranks : {2, 4}) {
      const PlannedRun run = plan(kStated + Overrides{cat("engine.ranks=", ranks)} + more);
      std::vector<std::vector<std::tuple<std::string, int, int>>> sequences(ranks);
      for (const Stage& stage : run.program.stages) {
        const std::string& kind = run.program.kinds[stage.kind];
        // Of weights on their way to peers, the part is whose shard they are.
        if (stage.lane.lane == Lane::kComm) sequences[stage.lane.index].emplace_back(kind, stage.layer, kind.starts_with("experts_") ? stage.part : kNone);
      }
      ASSERT_FALSE(sequences[0].empty());
      for (int rank = 1; rank < ranks; ++rank) EXPECT_TRUE(sequences[rank] == sequences[0]) << "rank " << rank << " of " << ranks << " " << ::testing::PrintToString(more);
    }
  }
}

// Which layers are resident decides when things happen, not what happens. The last two are streamed here either way: where the step turns, what is still in its
// window is not delivered again.
TEST_F(ExchangeProgram, PlacementChangesNeitherMemoryNorWork) {
  std::string model = kModel;
  model.replace(model.find(R"("num_hidden_layers": 3)"), 22, R"("num_hidden_layers": 8)");
  write_file(folder_ / "model/config.json", model);
  for (const Overrides& more : {Overrides{"engine.ranks=2"}, {"engine.ranks=4", "ep.routing_chunk=24", "ep.retain=[2]", "state.resident_ordinary=all", "state.resident_weights=cached"}}) {
    const Overrides resident{"state.resident=3"};
    const PlannedRun contiguous = plan(kStated + resident + Overrides{"state.placement=contiguous"} + more), interleaved = plan(kStated + resident + Overrides{"state.placement=interleaved"} + more);
    EXPECT_EQ(contiguous.plan.resident_layers, (std::vector<int>{0, 1, 2}));
    EXPECT_EQ(interleaved.plan.resident_layers, (std::vector<int>{0, 1, 5}));
    const auto places = [](const MemoryAccount& account) {
      std::vector<std::pair<int64_t, ClassBytes>> bytes;
      for (const std::vector<PlaceAccount>* side : {&account.gpus, &account.nodes}) {
        for (const PlaceAccount& place : *side) bytes.insert(bytes.end(), {{place.persistent_bytes, place.persistent}, {place.peak_bytes, place.at_peak}});
      }
      return bytes;
    };
    EXPECT_EQ(places(contiguous.account), places(interleaved.account));
    const auto work = [](const Program& program) {
      std::map<std::pair<std::string, int>, std::vector<double>> sums;  // by kind and rank
      for (const Stage& stage : program.stages) {
        const Cost& cost = stage.cost;
        std::vector<double> drawn{1, cost.gemm_flops, cost.attention_flops, cost.other_flops, cost.hbm_bytes, cost.h2d_bytes, cost.d2h_bytes, cost.peer_bytes, cost.update_parameters, cost.convert_parameters, cost.bytes, cost.parameters, cost.tokens};
        drawn.insert(drawn.end(), cost.host_bytes.begin(), cost.host_bytes.end());
        std::vector<double>& sum = sums[{program.kinds[stage.kind], stage.rank}];
        sum.resize(drawn.size());
        for (size_t i = 0; i < drawn.size(); ++i) sum[i] += drawn[i];
      }
      return sums;
    };
    const auto expected = work(contiguous.program), got = work(interleaved.program);
    EXPECT_EQ(got.size(), expected.size());
    for (const auto& [kind, drawn] : expected) EXPECT_EQ(got.at(kind), drawn) << kind.first << " rank " << kind.second << " " << ::testing::PrintToString(more);
  }
}

}  // namespace
}  // namespace oom::runtime
