#include <sstream>

#include "base/text.h"
#include "oom/stage.h"

namespace oom {
inline namespace abi_1 {

const char* lane_name(Lane lane) {
  static constexpr const char* kNames[kLaneKinds] = {"compute", "comm", "h2d", "d2h", "d2h_expert", "issue", "prepare", "update"};
  return kNames[static_cast<int>(lane)];
}

const char* buffer_class_name(BufferClass buffer_class) {
  static constexpr const char* kNames[kBufferClasses] = {"fixed",    "state",  "working_weight", "gradient", "boundary",
                                                         "retained", "result", "staging",        "workspace"};
  return kNames[static_cast<int>(buffer_class)];
}

std::string place_name(Place place) { return cat(place.kind == Place::Kind::kGpu ? "gpu " : "numa ", place.index); }

std::string lane_id_name(LaneId lane) {
  return cat(lane_name(lane.lane), is_pool_lane(lane.lane) ? " of node " : " of rank ", lane.index);
}

std::string stage_name(const Program& program, StageId id) {
  const Stage& stage = program.stages[id];
  std::string name = program.kinds[stage.kind];
  if (stage.layer >= 0) name += cat(" layer ", stage.layer);  // the ends of the model have negative ones
  if (stage.part != kNone) name += cat(" part ", stage.part);
  if (stage.rank != kNone) name += cat(" rank ", stage.rank);
  name += cat(" (", lane_name(stage.lane.lane));
  if (is_pool_lane(stage.lane.lane)) name += cat(" of node ", stage.lane.index);
  return name + cat(", stage ", id, ")");
}

namespace {

void describe_accesses(std::ostringstream& out, const Program& program, const Stage& stage, AccessMode mode, const char* verb) {
  bool first = true;
  for (const Access& access : stage.accesses) {
    if (access.mode != mode) continue;
    out << (first ? verb : ", ") << program.buffers[access.buffer].name << " v" << access.version;
    first = false;
  }
}

void describe_edges(std::ostringstream& out, const Program& program, const Stage& stage) {
  for (size_t i = 0; i < stage.after.size(); ++i) {
    const Edge& edge = stage.after[i];
    out << (i == 0 ? "; after " : ", ") << edge.stage << " " << program.kind_of(edge.stage);
    if (edge.distance != 0) out << " of the step before";
  }
}

}  // namespace

std::string describe(const Program& program) {
  std::ostringstream out;
  out << program.ranks << " ranks, " << program.nodes << " nodes, " << program.buffers.size() << " buffers, " << program.stages.size()
      << " stages, " << program.shards.size() << " shards\n";
  for (size_t id = 0; id < program.buffers.size(); ++id) {
    const Buffer& buffer = program.buffers[id];
    out << "buffer " << id << " " << buffer.name << ": " << place_name(buffer.place) << ", " << base::format_bytes(buffer.bytes) << ", "
        << buffer_class_name(buffer.buffer_class) << (buffer.lifetime == Lifetime::kTransient ? ", transient" : "");
    if (buffer.storage != static_cast<BufferId>(id)) out << ", in " << program.buffers[buffer.storage].name;
    out << "\n";
  }
  for (size_t id = 0; id < program.stages.size(); ++id) {
    const Stage& stage = program.stages[id];
    out << "stage " << stage_name(program, static_cast<StageId>(id)) << ":";
    describe_accesses(out, program, stage, AccessMode::kRead, " reads ");
    describe_accesses(out, program, stage, AccessMode::kUpdate, " updates ");
    describe_accesses(out, program, stage, AccessMode::kWrite, " writes ");
    describe_edges(out, program, stage);
    if (stage.collective != kNone) {
      out << "; collective " << stage.collective << " of " << program.communicators[program.collectives[stage.collective].communicator];
    }
    if (stage.updates_shard != kNone) out << "; updates shard " << program.shards[stage.updates_shard].name;
    if (stage.step_result) out << "; step result";
    if (stage.waits_on_stream) out << "; waits on its stream";
    out << "\n";
  }
  return out.str();
}

}  // namespace abi_1
}  // namespace oom
