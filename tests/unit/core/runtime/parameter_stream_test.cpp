// What a program moves for a layer's parameters, by the stages' own costs: the numbers that plans are judged by.
#include <gmock/gmock.h>

#include <map>

#include "planner_fixture.h"

namespace oom::runtime {
namespace {

// Layer 0 is delivered twice a step: it is the first to leave its window.
constexpr int kLayer = 0;

bool moves_parameters(const std::string& kind) { return kind.starts_with("weights_") || kind.starts_with("gradient_") || kind == "update" || kind == "resident_update" || kind == "norm_out"; }

struct Traffic {
  double host = 0, h2d = 0, d2h = 0, peer = 0;
  double updated = 0;  // parameters
};

class ParameterStream : public Planner {
 protected:
  // BF16; nothing else differs from run to run.
  PlannedRun planned(const std::string& experts, int ranks, std::vector<std::string> more = {}) {
    more.insert(more.end(), {cat("engine.experts=", experts), cat("engine.ranks=", ranks), "precision.compute=bf16", "train.updates=overlapped"});
    return fitting(more);
  }

  // Of the ordinary parameters and experts of layer 0, on all ranks or on one.
  static Traffic traffic(const PlannedRun& run, int rank = -1) {
    Traffic total;
    for (const Stage& stage : run.program.stages) {
      if (stage.layer != kLayer || !moves_parameters(run.program.kinds[stage.kind])) continue;
      if (rank >= 0 && stage.rank != rank) continue;
      for (const double bytes : stage.cost.host_bytes) total.host += bytes;
      total.h2d += stage.cost.h2d_bytes;
      total.d2h += stage.cost.d2h_bytes;
      total.peer += stage.cost.peer_bytes;
      if (stage.updates_shard != kNone) total.updated += stage.cost.parameters;
    }
    return total;
  }
};

class ParameterStreamOf : public ParameterStream, public ::testing::WithParamInterface<std::tuple<const char*, int>> {
 protected:
  PlannedRun planned(std::vector<std::string> more = {}) { return ParameterStream::planned(std::get<0>(GetParam()), std::get<1>(GetParam()), std::move(more)); }
};
INSTANTIATE_TEST_SUITE_P(All, ParameterStreamOf, ::testing::Combine(::testing::Values("local", "ep"), ::testing::Values(1, 2, 4)),
                         [](const auto& info) { return cat(std::get<0>(info.param), "_", std::get<1>(info.param)); });

// Two deliveries of 2 B, 2 B of gradients, and the update: 24 B of state, 2 B of gradients, 2 B of weights.
TEST_P(ParameterStreamOf, CachedWeightsTake34BytesOfHostTraffic) {
  const Traffic total = traffic(planned());
  EXPECT_DOUBLE_EQ(total.host, 34 * total.updated);
}

// Each delivery reads 4 B and writes and reads 2 B; the update publishes nothing.
TEST_P(ParameterStreamOf, ConvertedWeightsTake44) {
  const Traffic total = traffic(planned({"state.weights=convert"}));
  EXPECT_DOUBLE_EQ(total.host, 44 * total.updated);
}

TEST_P(ParameterStreamOf, ResidentShardsTouchTheHostForTheirNormsAlone) {
  for (const char* weights : {"state.resident_weights=convert", "state.resident_weights=cached"}) {
    const PlannedRun run = planned({"state.resident=all", "state.resident_ordinary=all", weights});
    const Traffic total = traffic(run);
    EXPECT_EQ(total.host, 0);
    EXPECT_EQ(total.h2d, 0);
    EXPECT_LE(total.d2h, 64.0 * static_cast<double>(run.program.shards.size()));
  }
}

// One updater a shard: a resident shard's on a stream of its owner, a streamed one's on the update lane of the owner's node.
TEST_P(ParameterStreamOf, EveryShardIsUpdatedOnceWhereItLives) {
  const PlannedRun run = planned({"state.resident=[1]"});
  std::map<ShardId, int> updates;
  int on_devices = 0;
  for (const Stage& stage : run.program.stages) {
    if (stage.updates_shard == kNone) continue;
    ++updates[stage.updates_shard];
    const Shard& shard = run.program.shards.at(stage.updates_shard);
    const bool resident = shard.layer == 1 && (shard.name.find("bank") != std::string::npos || shard.name.find("experts") != std::string::npos);
    EXPECT_EQ(is_stream_lane(stage.lane.lane), resident) << shard.name;
    if (resident) {
      EXPECT_EQ(stage.lane.index, shard.rank);
    }
    on_devices += resident ? 1 : 0;
    for (const Access& access : stage.accesses) {
      if (access.mode == AccessMode::kUpdate) {
        EXPECT_EQ(run.program.buffers[access.buffer].place, resident ? Place::gpu(shard.rank) : Place::numa(0));
      }
    }
  }
  EXPECT_EQ(updates.size(), run.program.shards.size());
  EXPECT_EQ(on_devices, std::get<1>(GetParam()));
}

// Waiting gradients of resident shards would take GPU memory and give nothing, unless every update has to wait.
TEST_P(ParameterStreamOf, ResidentUpdatesWaitOnlyWhereAllDo) {
  const auto pending_bytes = [&](int deferred) {
    Plan plan = planned({"state.resident=[0]"}).plan;
    plan.deferred_layers = deferred;
    const PlannedRun run = fitting({written(plan), cat("engine.experts=", std::get<0>(GetParam())), cat("engine.ranks=", std::get<1>(GetParam())), "precision.compute=bf16"});
    int64_t bytes = 0;
    for (const Buffer& buffer : run.program.buffers) {
      if (buffer.place.kind == Place::Kind::kGpu && buffer.name.find("pending gradient") != std::string::npos) bytes += buffer.bytes;
    }
    return bytes;
  };
  EXPECT_EQ(pending_bytes(2), 0);
  EXPECT_EQ(pending_bytes(3), 2 * 16 * 3 * 32 * 64);  // of the one resident bank
}

// What residency takes from the host it takes whole: state, and working weights where they are kept.
TEST_P(ParameterStreamOf, ResidencyMovesStateFromHostToGpus) {
  const PlannedRun none = planned({"engine.device=cuda", "budget.gpu=\"8GiB\"", "budget.host=\"32GiB\"", "state.resident=none", "state.resident_ordinary=none", "state.weights=cached"});
  const PlannedRun some = planned({"engine.device=cuda", "budget.gpu=\"8GiB\"", "budget.host=\"32GiB\"", "state.resident=2", "state.resident_ordinary=none", "state.weights=cached"});
  const auto host = [](const PlannedRun& run, BufferClass c) {
    int64_t bytes = 0;
    for (const PlaceAccount& node : run.account.nodes) bytes += node.persistent[static_cast<size_t>(c)];
    return bytes;
  };
  const auto gpu = [](const PlannedRun& run, BufferClass c) {
    int64_t bytes = 0;
    for (const PlaceAccount& rank : run.account.gpus) bytes += rank.persistent[static_cast<size_t>(c)];
    return bytes;
  };
  const int64_t bank = 16 * 3 * 32 * 64;  // parameters of a layer's experts, which fill whole state blocks
  EXPECT_EQ(host(none, BufferClass::kState) - host(some, BufferClass::kState), 2 * 12 * bank);
  EXPECT_EQ(gpu(some, BufferClass::kState) - gpu(none, BufferClass::kState), 2 * 12 * bank);
  EXPECT_EQ(host(none, BufferClass::kWorkingWeight) - host(some, BufferClass::kWorkingWeight), 2 * 2 * bank);
}

TEST_F(ParameterStream, ShardDeliveryBringsEachRankItsPartAlone) {
  for (const int ranks : {2, 4}) {
    const PlannedRun shard = planned("local", ranks), full = planned("local", ranks, {"local.delivery=full", "transfer.ordinary_delivery=full"});
    for (int rank = 0; rank < ranks; ++rank) EXPECT_DOUBLE_EQ(traffic(shard, rank).h2d * ranks, traffic(full, rank).h2d);
    EXPECT_DOUBLE_EQ(traffic(shard).host + static_cast<double>(ranks - 1) * traffic(shard).h2d, traffic(full).host);
  }
}

// Every rank's partial crosses PCIe, none crosses from GPU to GPU; the host reads them for the norm and for the update.
TEST_F(ParameterStream, ReductionOnTheHostTakesEveryPartialOut) {
  for (const int ranks : {2, 4}) {
    const Traffic gpu = traffic(planned("local", ranks)), host = traffic(planned("local", ranks, {"transfer.gradient_reduction=host"}));
    EXPECT_DOUBLE_EQ(host.d2h, 2.0 * ranks * host.updated);
    EXPECT_DOUBLE_EQ(host.host, (4 + 24 + 2 + 6.0 * ranks) * host.updated);
    EXPECT_GT(gpu.peer, host.peer);
  }
}

TEST_F(ParameterStream, OneRankReducesNothingOnTheHost) {
  const Traffic gpu = traffic(planned("local", 1)), host = traffic(planned("local", 1, {"transfer.gradient_reduction=host"}));
  EXPECT_EQ(host.host, gpu.host);
}

// A unit of one owner and one reader whose weights are kept is read where they are: no window, no copy.
TEST_F(ParameterStream, KeptExpertsOfOneOwnerAreReadInPlace) {
  const auto copies = [&](const char* experts) {
    const PlannedRun run = planned(experts, 2, {"state.resident=all", "state.resident_weights=cached"});
    int count = 0;
    for (const Stage& stage : run.program.stages) count += run.program.kinds[stage.kind] == "weights_copy" ? 1 : 0;
    return count;
  };
  EXPECT_EQ(copies("ep"), 0);
  EXPECT_GT(copies("local"), 0);
}

}  // namespace
}  // namespace oom::runtime
