#include "random_program.h"

#include <algorithm>
#include <map>
#include <random>

namespace oom::program {
namespace {

class Generator {
 public:
  Generator(unsigned seed, RandomProgramSize size) : size_(size), random_(seed), builder_(nodes_of_ranks(size), size.nodes) {}

  BuiltProgram run() {
    add_buffers();
    for (int r = 0; r < size_.ranks; ++r) shards_.push_back(builder_.add_shard(cat("shard ", r), 0, r));
    while (builder_.stage_count() < size_.stages) {
      if (size_.ranks > 1 && chance(0.12)) emit_collective();
      else emit_stage(random_lane());
    }
    for (BufferId id : buffers_) {
      const Buffer& buffer = builder_.buffer(id);
      if (buffer.lifetime == Lifetime::kTransient && buffer.place.kind == Place::Kind::kGpu && may_read(id)) {
        builder_.emit({.kind = "release", .lane = {Lane::kCompute, buffer.place.index}, .reads = {id}});
      }
    }
    for (ShardId shard : shards_) {
      StageSpec spec{.kind = "update", .layer = 0, .rank = shard, .lane = {Lane::kUpdate, shard % size_.nodes}};
      spec.updates_shard = shard;
      choose_accesses(spec);
      spec.step_result = chance(0.5);
      builder_.emit(spec);
    }
    return std::move(builder_).build();
  }

 private:
  static std::vector<int32_t> nodes_of_ranks(RandomProgramSize size) {
    std::vector<int32_t> nodes;
    for (int r = 0; r < size.ranks; ++r) nodes.push_back(r % size.nodes);
    return nodes;
  }
  int below(int bound) { return std::uniform_int_distribution<int>(0, bound - 1)(random_); }
  bool chance(double p) { return std::uniform_real_distribution<double>(0, 1)(random_) < p; }

  void add_buffers() {
    for (int i = 0; i < size_.buffers; ++i) {
      const Place place = chance(0.6) ? Place::gpu(below(size_.ranks)) : Place::numa(below(size_.nodes));
      BufferSpec spec{.name = cat("buffer ", i), .place = place, .bytes = 64 << below(4)};
      if (chance(0.2)) spec.lifetime = Lifetime::kTransient;
      buffers_.push_back(builder_.add_buffer(spec));
      if (spec.lifetime == Lifetime::kPersistent && chance(0.25)) {
        buffers_.push_back(builder_.add_buffer({.name = cat("buffer ", i, " in turn"), .place = place, .bytes = 64, .shares = buffers_.back()}));
        turns_[buffers_[buffers_.size() - 2]] = true;
        turns_[buffers_.back()] = true;
      }
    }
  }

  LaneId random_lane() {
    const auto lane = static_cast<Lane>(below(kLaneKinds));
    return {lane, below(is_pool_lane(lane) ? size_.nodes : size_.ranks)};
  }

  bool may_touch(const Buffer& buffer, LaneId lane) const {
    if (buffer.lifetime == Lifetime::kPersistent || buffer.place.kind == Place::Kind::kNuma) return true;
    return is_stream_lane(lane.lane) && lane.index == buffer.place.index && (lane.lane == Lane::kCompute || buffer.versions > 0);
  }
  // Buffers in turn and transients are read only after the step has written them.
  bool may_read(BufferId id) const {
    const Buffer& buffer = builder_.buffer(id);
    const bool needs_writer = buffer.lifetime == Lifetime::kTransient || turns_.count(id) > 0;
    const auto content = content_.find(buffer.storage);
    return !needs_writer || (content != content_.end() && content->second == id);
  }

  void choose_accesses(StageSpec& spec) {
    std::vector<BufferId> storages;
    for (int i = 1 + below(4); i > 0; --i) {
      const BufferId id = buffers_[below(static_cast<int>(buffers_.size()))];
      const Buffer& buffer = builder_.buffer(id);
      if (!may_touch(buffer, spec.lane) || std::count(storages.begin(), storages.end(), buffer.storage)) continue;
      storages.push_back(buffer.storage);
      const bool readable = may_read(id);
      const int mode = below(5);
      if (readable && mode < 2) spec.reads.push_back(id);
      else if (readable && mode == 2) spec.updates.push_back(id);
      else spec.writes.push_back(id);
    }
    for (BufferId id : spec.writes) content_[builder_.buffer(id).storage] = id;
  }

  void emit_stage(LaneId lane) {
    const std::string kind = cat("work_", below(5));
    StageSpec spec{.kind = kind, .layer = below(4), .lane = lane};
    choose_accesses(spec);
    if (builder_.stage_count() > 0 && chance(0.1)) spec.after.push_back({below(builder_.stage_count()), below(2)});
    spec.cost.fixed_seconds = 1e-6 * below(50);
    spec.cost.h2d_bytes = chance(0.3) ? 1e6 * below(10) : 0;
    spec.cost.workspace_bytes = below(100);
    spec.waits_on_stream = chance(0.5);
    builder_.emit(spec);
  }

  void emit_collective() {
    std::vector<int32_t> ranks;
    for (int r = 0; r < size_.ranks; ++r) ranks.push_back(r);
    const CollectiveId id = builder_.add_collective("world", ranks);
    for (int r : ranks) {
      StageSpec spec{.kind = "collective", .lane = {Lane::kComm, r}, .collective = id};
      // Members touch only what is theirs: a member that needed another's output would wait for itself.
      for (BufferId buffer : buffers_) {
        const Buffer& b = builder_.buffer(buffer);
        if (b.lifetime == Lifetime::kTransient || b.place != Place::gpu(r) || turns_.count(buffer) || !chance(0.4)) continue;
        (chance(0.5) ? spec.reads : spec.updates).push_back(buffer);
      }
      builder_.emit(spec);
    }
  }

  RandomProgramSize size_;
  std::mt19937 random_;
  ProgramBuilder builder_;
  std::vector<BufferId> buffers_;
  std::vector<ShardId> shards_;
  std::map<BufferId, bool> turns_;          // buffers that share bytes
  std::map<BufferId, BufferId> content_;    // [storage] written in this step
};

}  // namespace

BuiltProgram random_program(unsigned seed, RandomProgramSize size) { return Generator(seed, size).run(); }

}  // namespace oom::program
