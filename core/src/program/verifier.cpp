#include "program/verifier.h"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "program/unrolled_run.h"

namespace oom::program {
namespace {

constexpr int kSteps = 3;

class Verification {
 public:
  explicit Verification(const Program& program) : program_(program) {}

  std::vector<Fault> run() {
    check_structure();
    if (!faults_.empty()) return faults_;
    check_shards();
    check_collectives();
    const LaneOrder lanes(program_);
    UnrolledRun run(program_, lanes, kSteps, false);
    const auto stuck = run.run();
    if (!stuck.empty()) {
      fault(FaultKind::kDeadlock, cat("nothing can go on at ", names(stuck)));
      return faults_;
    }
    check_demanded(run);
    check_accesses(run);
    check_transients(run);
    UnrolledRun host(program_, lanes, kSteps, true);
    const auto host_stuck = host.run();
    if (!host_stuck.empty()) {
      fault(FaultKind::kHostOrder, cat("issuing threads and pools wait for each other in a circle at ", names(host_stuck)));
    }
    return faults_;
  }

 private:
  void fault(FaultKind kind, std::string message) {
    if (seen_.insert(message).second) faults_.push_back({kind, std::move(message)});
  }
  std::string name(StageId stage) const { return stage_name(program_, stage); }
  std::string names(const std::vector<Instance>& instances) const {
    std::set<StageId> stages;
    for (const Instance& at : instances) stages.insert(at.stage);
    std::string list;
    for (StageId stage : stages) list += (list.empty() ? "" : "; ") + name(stage);
    return list;
  }
  template <typename Id, typename List>
  static bool within(Id id, const List& list) {
    return id >= 0 && static_cast<size_t>(id) < list.size();
  }

  // Everything that later checks index by.
  void check_structure() {
    for (size_t id = 0; id < program_.buffers.size(); ++id) {
      const Buffer& buffer = program_.buffers[id];
      const bool ok = within(buffer.storage, program_.buffers) && program_.buffers[buffer.storage].storage == buffer.storage &&
                      program_.buffers[buffer.storage].place == buffer.place && program_.buffers[buffer.storage].bytes >= buffer.bytes;
      if (!ok) fault(FaultKind::kStructure, cat("buffer '", buffer.name, "' has storage ", buffer.storage, ", which cannot hold it"));
    }
    for (size_t id = 0; id < program_.stages.size(); ++id) {
      const Stage& stage = program_.stages[id];
      if (!within(stage.kind, program_.kinds)) {
        fault(FaultKind::kStructure, cat("stage ", id, " has unknown kind ", stage.kind));
        continue;
      }
      const auto bad = [&](const char* what, auto value) {
        fault(FaultKind::kStructure, cat(name(static_cast<StageId>(id)), " has ", what, " ", value, ", which does not exist"));
      };
      if (stage.lane.index < 0 || stage.lane.index >= (is_pool_lane(stage.lane.lane) ? program_.nodes : program_.ranks)) {
        bad("lane", lane_id_name(stage.lane));
      }
      for (const Access& access : stage.accesses) {
        if (!within(access.buffer, program_.buffers)) bad("buffer", access.buffer);
      }
      for (const auto* edges : {&stage.after, &stage.demanded}) {
        for (const Edge& edge : *edges) {
          if (!within(edge.stage, program_.stages) || edge.distance < 0 || edge.distance > 1) bad("an edge from stage", edge.stage);
        }
      }
      if (stage.collective != kNone && !within(stage.collective, program_.collectives)) bad("collective", stage.collective);
      if (stage.updates_shard != kNone && !within(stage.updates_shard, program_.shards)) bad("shard", stage.updates_shard);
    }
  }

  void check_shards() {
    std::vector<std::vector<StageId>> updaters(program_.shards.size());
    for (size_t id = 0; id < program_.stages.size(); ++id) {
      if (const ShardId shard = program_.stages[id].updates_shard; shard != kNone) updaters[shard].push_back(static_cast<StageId>(id));
    }
    for (size_t shard = 0; shard < updaters.size(); ++shard) {
      if (updaters[shard].size() == 1) continue;
      std::string list;
      for (StageId stage : updaters[shard]) list += ": " + name(stage);
      fault(FaultKind::kShard, cat("shard '", program_.shards[shard].name, "' has ", updaters[shard].size(), " updaters in a step, must have one", list));
    }
  }

  void check_collectives() {
    std::vector<std::vector<int32_t>> members(program_.collectives.size());
    std::map<std::pair<int32_t, int32_t>, std::vector<StageId>> sequences;  // [communicator, rank]
    for (size_t id = 0; id < program_.stages.size(); ++id) {
      const Stage& stage = program_.stages[id];
      if (stage.collective == kNone) continue;
      if (is_pool_lane(stage.lane.lane)) fault(FaultKind::kCollective, cat(name(static_cast<StageId>(id)), " is a collective on a pool lane"));
      members[stage.collective].push_back(stage.lane.index);
      sequences[{program_.collectives[stage.collective].communicator, stage.lane.index}].push_back(static_cast<StageId>(id));
    }
    for (size_t id = 0; id < members.size(); ++id) {
      auto expected = program_.collectives[id].ranks;
      std::sort(expected.begin(), expected.end());
      std::sort(members[id].begin(), members[id].end());
      if (members[id] != expected) {
        fault(FaultKind::kCollective, cat("collective ", id, " of ", communicator_of(static_cast<CollectiveId>(id)), " has ", members[id].size(),
                                          " members, must have one on each of its ", expected.size(), " ranks"));
      }
    }
    for (const auto& [key, sequence] : sequences) {
      for (StageId stage : sequence) {
        if (program_.stages[stage].lane == program_.stages[sequence.front()].lane) continue;
        fault(FaultKind::kCollective, cat(name(stage), " and ", name(sequence.front()), " use communicator ", program_.communicators[key.first],
                                          " from two lanes"));
      }
    }
    for (auto first = sequences.begin(); first != sequences.end(); ++first) {
      for (auto second = std::next(first); second != sequences.end() && second->first.first == first->first.first; ++second) {
        compare_sequences(first->second, second->second);
      }
    }
  }

  void compare_sequences(const std::vector<StageId>& first, const std::vector<StageId>& second) {
    const auto common = [&](const std::vector<StageId>& stages, const std::vector<StageId>& others) {
      std::set<CollectiveId> theirs;
      for (StageId stage : others) theirs.insert(program_.stages[stage].collective);
      std::vector<StageId> result;
      for (StageId stage : stages) {
        if (theirs.count(program_.stages[stage].collective)) result.push_back(stage);
      }
      return result;
    };
    const auto mine = common(first, second), theirs = common(second, first);
    for (size_t i = 0; i < std::min(mine.size(), theirs.size()); ++i) {
      if (program_.stages[mine[i]].collective == program_.stages[theirs[i]].collective) continue;
      fault(FaultKind::kCollective, cat("ranks issue the collectives of ", communicator_of(program_.stages[mine[i]].collective),
                                        " in different orders: ", name(mine[i]), " meets ", name(theirs[i])));
      return;
    }
  }
  const std::string& communicator_of(CollectiveId id) const { return program_.communicators[program_.collectives[id].communicator]; }

  void check_demanded(const UnrolledRun& run) {
    for (size_t id = 0; id < program_.stages.size(); ++id) {
      const auto after = static_cast<StageId>(id);
      for (const Edge& edge : program_.stages[id].demanded) {
        if (run.ordered({1 - edge.distance, edge.stage}, {1, after})) continue;
        fault(FaultKind::kOrder, cat(name(after), " does not wait for ", name(edge.stage), edge.distance ? " of the step before" : "", ", as demanded"));
      }
    }
  }

  // One write of a storage in the unrolled steps; `readers` need what it wrote.
  struct Write {
    Instance at;
    std::vector<std::pair<Instance, BufferId>> readers;
  };

  void check_accesses(const UnrolledRun& run) {
    // Writers by storage in emission order, step after step; place of each version's writer in that sequence.
    std::vector<std::vector<Write>> writes(program_.buffers.size());
    std::map<std::pair<BufferId, int32_t>, size_t> place;  // [buffer, version] within the writes of one step
    std::vector<int32_t> versions(program_.buffers.size(), 0);
    for (int step = 0; step < kSteps; ++step) {
      for (size_t id = 0; id < program_.stages.size(); ++id) {
        for (const Access& access : program_.stages[id].accesses) {
          if (access.mode == AccessMode::kRead) continue;
          auto& sequence = writes[program_.buffers[access.buffer].storage];
          if (step == 0) {
            if (access.version != ++versions[access.buffer]) {
              fault(FaultKind::kOrder, cat(name(static_cast<StageId>(id)), " makes version ", access.version, " of buffer '",
                                           program_.buffers[access.buffer].name, "', which is number ", versions[access.buffer]));
            }
            place[{access.buffer, access.version}] = sequence.size();
          }
          sequence.push_back({{step, static_cast<StageId>(id)}, {}});
        }
      }
    }
    // The first reader list of a storage: what was there before the first step.
    std::vector<Write> initial(program_.buffers.size());
    for (int step = 0; step < kSteps; ++step) {
      for (size_t id = 0; id < program_.stages.size(); ++id) {
        const Instance at{step, static_cast<StageId>(id)};
        for (const Access& access : program_.stages[id].accesses) check_read(run, at, access, versions, place, writes, initial);
      }
    }
    for (size_t storage = 0; storage < writes.size(); ++storage) {
      check_reuse(run, initial[storage], writes[storage], 0);
      for (size_t i = 0; i < writes[storage].size(); ++i) check_reuse(run, writes[storage][i], writes[storage], i + 1);
    }
  }

  // Memory of a slot is taken when the first stage that touches it is launched and given back with the last, both in the order of the compute lane.
  void check_transients(const UnrolledRun& run) {
    std::vector<std::vector<StageId>> users(program_.buffers.size());
    for (size_t id = 0; id < program_.stages.size(); ++id) {
      for (const Access& access : program_.stages[id].accesses) users[access.buffer].push_back(static_cast<StageId>(id));
    }
    for (size_t id = 0; id < users.size(); ++id) {
      const Buffer& buffer = program_.buffers[id];
      if (buffer.lifetime != Lifetime::kTransient || buffer.place.kind != Place::Kind::kGpu || users[id].empty()) continue;
      const LaneId compute{Lane::kCompute, buffer.place.index};
      const StageId first = users[id].front(), last = users[id].back();
      const auto what = [&] { return cat("transient buffer '", buffer.name, "' of ", place_name(buffer.place)); };
      for (const StageId end : {first, last}) {
        if (program_.stages[end].lane != compute) fault(FaultKind::kTransient, cat(name(end), " is the first or the last to touch ", what(), "; only the compute lane of that rank may be"));
      }
      for (const StageId user : users[id]) {
        const LaneId lane = program_.stages[user].lane;
        if (!is_stream_lane(lane.lane) || lane.index != buffer.place.index) fault(FaultKind::kTransient, cat(name(user), " touches ", what(), "; only stream lanes of that rank may"));
        if (user != first && !run.ordered({1, first}, {1, user})) fault(FaultKind::kTransient, cat(name(user), " does not wait until ", name(first), " has made ", what()));
        if (user != last && !run.ordered({1, user}, {1, last})) fault(FaultKind::kTransient, cat(name(last), " releases ", what(), " while ", name(user), " may still use it"));
      }
    }
  }

  void check_read(const UnrolledRun& run, Instance at, const Access& access, const std::vector<int32_t>& versions,
                  const std::map<std::pair<BufferId, int32_t>, size_t>& place, std::vector<std::vector<Write>>& writes,
                  std::vector<Write>& initial) {
    const Buffer& buffer = program_.buffers[access.buffer];
    if (access.mode == AccessMode::kWrite) return;
    const int32_t wanted = access.mode == AccessMode::kRead ? access.version : access.version - 1;
    if (wanted == 0 && buffer.lifetime == Lifetime::kTransient) {
      fault(FaultKind::kTransient, cat(name(at.stage), " reads transient buffer '", buffer.name, "', which no stage of the step has written"));
      return;
    }
    const int32_t version = wanted == 0 ? versions[access.buffer] : wanted;
    const int step = wanted == 0 ? at.step - 1 : at.step;
    auto& sequence = writes[buffer.storage];
    if (version == 0 || step < 0) {
      initial[buffer.storage].readers.emplace_back(at, access.buffer);
      return;
    }
    const auto found = place.find({access.buffer, version});
    if (found == place.end()) {
      fault(FaultKind::kOrder, cat(name(at.stage), " reads version ", wanted, " of buffer '", buffer.name, "', which nothing writes"));
      return;
    }
    Write& write = sequence[found->second + static_cast<size_t>(step) * (sequence.size() / kSteps)];
    write.readers.emplace_back(at, access.buffer);
    if (!run.ordered(write.at, at)) {
      fault(FaultKind::kOrder, cat(name(at.stage), " does not wait until ", name(write.at.stage), step < at.step ? " of the step before" : "",
                                   " has written buffer '", buffer.name, "'"));
    }
  }

  // The write that follows `write` in the same bytes must wait for it and for all readers of what it wrote.
  void check_reuse(const UnrolledRun& run, const Write& write, const std::vector<Write>& sequence, size_t next) {
    if (next >= sequence.size()) return;
    const Instance after = sequence[next].at;
    if (write.at.stage != kNone && !run.ordered(write.at, after)) {
      fault(FaultKind::kReuse, cat(name(after.stage), " does not wait for ", name(write.at.stage), write.at.step < after.step ? " of the step before" : "",
                                   ", which writes the same bytes"));
    }
    for (const auto& [reader, buffer] : write.readers) {
      if (reader.stage == after.stage && reader.step == after.step) continue;
      if (run.ordered(reader, after)) continue;
      fault(FaultKind::kReuse, cat(name(after.stage), " overwrites buffer '", program_.buffers[buffer].name, "' while ", name(reader.stage),
                                   reader.step < after.step ? " of the step before" : "", " may still need it"));
    }
  }

  const Program& program_;
  std::vector<Fault> faults_;
  std::set<std::string> seen_;
};

}  // namespace

std::vector<Fault> verify(const Program& program) { return Verification(program).run(); }

void require_valid(const Program& program) {
  const auto faults = verify(program);
  if (faults.empty()) return;
  std::ostringstream out;
  out << "the step program has " << faults.size() << " faults:";
  for (const Fault& fault : faults) out << "\n  " << fault.message;
  throw Error(out.str());
}

}  // namespace oom::program
