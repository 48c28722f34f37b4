#include <algorithm>
#include <unordered_map>
#include <utility>

#include "oom/program.h"
#include "program/edge_reduction.h"
#include "program/hazards.h"
#include "program/lane_order.h"

namespace oom {
inline namespace abi_1 {

namespace {

struct TextHash : std::hash<std::string_view> {
  using is_transparent = void;
};
using NameIndex = std::unordered_map<std::string, int32_t, TextHash, std::equal_to<>>;

// Returns the index of `name` in `names`, appending it when it is new.
int32_t intern(std::vector<std::string>& names, NameIndex& index, std::string_view name) {
  if (const auto known = index.find(name); known != index.end()) return known->second;
  const auto id = static_cast<int32_t>(names.size());
  names.emplace_back(name);
  index.emplace(name, id);
  return id;
}

bool is_device_transient(const Buffer& buffer) { return buffer.lifetime == Lifetime::kTransient && buffer.place.kind == Place::Kind::kGpu; }

void check_place(const Program& program, Place place, const std::string& name) {
  const int32_t count = place.kind == Place::Kind::kGpu ? program.ranks : program.nodes;
  OOM_CHECK(place.index >= 0 && place.index < count, "buffer '", name, "' is on ", place_name(place), "; there are ", program.ranks,
            " ranks and ", program.nodes, " nodes");
}

}  // namespace

struct ProgramBuilder::State {
  Program program;
  ProgramUse use = ProgramUse::kRun;
  std::vector<Action> actions;
  std::vector<std::vector<Edge>> wanted;  // by StageId
  program::Hazards hazards;
  NameIndex kind_index;
  NameIndex communicator_index;
  std::vector<BufferId> all;      // of the stage at hand; kept for their capacity
  std::vector<StageId> wait_for;  // likewise

  void check_spec(const StageSpec& spec) {
    OOM_CHECK(!spec.kind.empty(), "a stage needs a kind");
    program::lane_index(program, spec.lane);
    OOM_CHECK(spec.collective >= kNone && spec.collective < static_cast<int32_t>(program.collectives.size()), "unknown collective ",
              spec.collective);
    OOM_CHECK(spec.updates_shard >= kNone && spec.updates_shard < static_cast<int32_t>(program.shards.size()), "unknown shard ",
              spec.updates_shard);
    all.clear();
    for (const auto* list : {&spec.reads, &spec.writes, &spec.updates}) all.insert(all.end(), list->begin(), list->end());
    std::sort(all.begin(), all.end());
    for (size_t i = 0; i < all.size(); ++i) {
      OOM_CHECK(all[i] >= 0 && all[i] < static_cast<int32_t>(program.buffers.size()), "unknown buffer ", all[i]);
      const Buffer& buffer = program.buffers[all[i]];
      OOM_CHECK(i == 0 || all[i] != all[i - 1], "names buffer '", buffer.name, "' twice: what it reads and writes is an update");
      if (!is_device_transient(buffer)) continue;
      const bool own_stream = is_stream_lane(spec.lane.lane) && spec.lane.index == buffer.place.index;
      OOM_CHECK(own_stream, "touches transient buffer '", buffer.name, "' of ", place_name(buffer.place), " from ", lane_id_name(spec.lane),
                "; only stream lanes of that rank may: make the buffer persistent");
      OOM_CHECK(spec.lane.lane == Lane::kCompute || buffer.versions > 0, "is the first to touch transient buffer '", buffer.name, "', from ", lane_id_name(spec.lane),
                "; a stage of the compute lane must make it");
    }
  }

  // Slots go when the stage that touches them last is done: it waits for those of other lanes.
  void end_transients() {
    std::vector<StageId> last(program.buffers.size(), kNone);
    std::vector<std::pair<BufferId, StageId>> elsewhere;
    for (StageId id = 0; id < static_cast<StageId>(program.stages.size()); ++id) {
      for (const Access& access : program.stages[id].accesses) {
        if (!is_device_transient(program.buffers[access.buffer])) continue;
        last[access.buffer] = id;
        if (program.stages[id].lane.lane != Lane::kCompute) elsewhere.emplace_back(access.buffer, id);
      }
    }
    for (const auto& [buffer, stage] : elsewhere) {
      OOM_CHECK(program.stages[last[buffer]].lane.lane == Lane::kCompute, stage_name(program, last[buffer]), " is the last to touch transient buffer '", program.buffers[buffer].name,
                "'; a stage of the compute lane must release it");
      wanted[last[buffer]].push_back({stage, 0});
    }
  }

  void want(StageId before, StageId after, int32_t distance) {
    OOM_CHECK(before >= 0 && before < static_cast<int32_t>(program.stages.size()), "order after unknown stage ", before);
    OOM_CHECK(after >= 0 && after < static_cast<int32_t>(program.stages.size()), "order before unknown stage ", after);
    OOM_CHECK(distance == 1 || (distance == 0 && before < after), "an order has distance 1, or 0 and an earlier stage; got distance ", distance,
              " from stage ", before, " to ", after);
    program.stages[after].demanded.push_back({before, distance});
    wanted[after].push_back({before, distance});
  }
};

ProgramBuilder::ProgramBuilder(std::vector<int32_t> node_of_rank, int32_t nodes, ProgramUse use) : state_(std::make_unique<State>()) {
  OOM_CHECK(!node_of_rank.empty(), "a program needs a rank");
  OOM_CHECK(nodes >= 1 && nodes <= kMaxNumaNodes, "got ", nodes, " NUMA nodes");
  for (int32_t node : node_of_rank) OOM_CHECK(node >= 0 && node < nodes, "a rank on node ", node, " of ", nodes);
  state_->program.ranks = static_cast<int32_t>(node_of_rank.size());
  state_->program.nodes = nodes;
  state_->program.node_of_rank = std::move(node_of_rank);
  state_->use = use;
}
ProgramBuilder::~ProgramBuilder() = default;
ProgramBuilder::ProgramBuilder(ProgramBuilder&&) noexcept = default;

ProgramUse ProgramBuilder::use() const { return state_->use; }
int32_t ProgramBuilder::ranks() const { return state_->program.ranks; }
int32_t ProgramBuilder::nodes() const { return state_->program.nodes; }
int32_t ProgramBuilder::node_of_rank(int32_t rank) const { return state_->program.node_of_rank.at(rank); }
int32_t ProgramBuilder::stage_count() const { return static_cast<int32_t>(state_->program.stages.size()); }
const Buffer& ProgramBuilder::buffer(BufferId buffer) const { return state_->program.buffers.at(buffer); }

BufferId ProgramBuilder::add_buffer(BufferSpec spec) {
  auto& buffers = state_->program.buffers;
  check_place(state_->program, spec.place, spec.name);
  OOM_CHECK(spec.bytes >= 0, "buffer '", spec.name, "' of ", spec.bytes, " bytes");
  const auto id = static_cast<BufferId>(buffers.size());
  BufferId storage = id;
  if (spec.shares != kNone) {
    OOM_CHECK(spec.shares >= 0 && spec.shares < id, "buffer '", spec.name, "' shares the bytes of unknown buffer ", spec.shares);
    storage = buffers[spec.shares].storage;
    const Buffer& owner = buffers[storage];
    OOM_CHECK(owner.lifetime == Lifetime::kPersistent && spec.lifetime == Lifetime::kPersistent, "buffers '", spec.name, "' and '", owner.name,
              "' share bytes: both must be persistent");
    OOM_CHECK(owner.place == spec.place && owner.bytes >= spec.bytes, "buffer '", spec.name, "' (", spec.bytes, " bytes on ",
              place_name(spec.place), ") does not fit into '", owner.name, "' (", owner.bytes, " bytes on ", place_name(owner.place), ")");
  }
  buffers.push_back({std::move(spec.name), spec.place, spec.bytes, spec.buffer_class, spec.lifetime, storage, 0});
  state_->hazards.add_buffer(buffers);
  return id;
}

ShardId ProgramBuilder::add_shard(std::string name, int32_t layer, int32_t rank) {
  state_->program.shards.push_back({std::move(name), layer, rank});
  return static_cast<ShardId>(state_->program.shards.size() - 1);
}

CollectiveId ProgramBuilder::add_collective(std::string_view communicator, std::vector<int32_t> ranks) {
  Program& program = state_->program;
  for (int32_t rank : ranks) OOM_CHECK(rank >= 0 && rank < program.ranks, "collective of rank ", rank, " of ", program.ranks);
  program.collectives.push_back({intern(program.communicators, state_->communicator_index, communicator), std::move(ranks)});
  return static_cast<CollectiveId>(program.collectives.size() - 1);
}

StageId ProgramBuilder::emit(StageSpec spec) {
  Program& program = state_->program;
  const auto id = static_cast<StageId>(program.stages.size());
  const auto named = [&] {
    return cat(spec.kind, " layer ", spec.layer, " part ", spec.part, " on ", lane_id_name(spec.lane), " (stage ", id, ")");
  };
  try {
    state_->check_spec(spec);
    Stage stage;
    stage.kind = intern(program.kinds, state_->kind_index, spec.kind);
    stage.layer = spec.layer;
    stage.part = spec.part;
    stage.rank = is_pool_lane(spec.lane.lane) ? spec.rank : spec.lane.index;
    stage.lane = spec.lane;
    stage.collective = spec.collective;
    stage.updates_shard = spec.updates_shard;
    stage.step_result = spec.step_result;
    stage.waits_on_stream = spec.waits_on_stream;
    stage.cost = spec.cost;
    std::vector<StageId>& wait_for = state_->wait_for;
    wait_for.clear();
    stage.accesses.reserve(state_->all.size());
    const auto access = [&](const std::vector<BufferId>& buffers, AccessMode mode) {
      for (BufferId buffer : buffers) {
        stage.accesses.push_back({buffer, state_->hazards.access(program.buffers, id, buffer, mode, wait_for), mode});
      }
    };
    access(spec.reads, AccessMode::kRead);
    access(spec.updates, AccessMode::kUpdate);
    access(spec.writes, AccessMode::kWrite);
    program.stages.push_back(std::move(stage));
    state_->actions.push_back(state_->use == ProgramUse::kRun ? std::move(spec.action) : Action());
    std::sort(wait_for.begin(), wait_for.end());
    wait_for.erase(std::unique(wait_for.begin(), wait_for.end()), wait_for.end());
    auto& wanted = state_->wanted.emplace_back();
    wanted.reserve(wait_for.size() + spec.after.size());
    for (StageId before : wait_for) wanted.push_back({before, 0});
    for (const Edge& edge : spec.after) state_->want(edge.stage, id, edge.distance);
  } catch (const Error& error) {
    throw Error(cat("stage ", named(), ": ", error.what()));
  }
  return id;
}

void ProgramBuilder::add_order(StageId before, StageId after, int32_t distance) { state_->want(before, after, distance); }

BuiltProgram ProgramBuilder::build() && {
  State& state = *state_;
  state.end_transients();
  for (const auto& order : state.hazards.wrap(state.program.buffers)) state.wanted[order.after].push_back({order.before, 1});
  program::reduce_edges(state.program, state.wanted);
  BuiltProgram built{std::move(state.program), std::move(state.actions)};
  state_.reset();
  return built;
}

}  // namespace abi_1
}  // namespace oom
