#include "oom/accountant.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "program/lane_order.h"
#include "program/unrolled_run.h"

namespace oom {
inline namespace abi_1 {

namespace {

using program::Instance;
using program::LaneOrder;

struct Interval {
  BufferId buffer;
  int first;  // positions in the compute lane
  int last;
};

class Accountant {
 public:
  explicit Accountant(const Program& program) : program_(program), lanes_(program), accesses_(program.buffers.size()) {
    for (size_t id = 0; id < program.stages.size(); ++id) {
      for (const Access& access : program.stages[id].accesses) accesses_[access.buffer].push_back(static_cast<StageId>(id));
    }
  }

  MemoryAccount run() {
    MemoryAccount account;
    for (int32_t rank = 0; rank < program_.ranks; ++rank) account.gpus.push_back(gpu(rank));
    for (int32_t node = 0; node < program_.nodes; ++node) account.nodes.push_back(host(node));
    return account;
  }

 private:
  static int64_t& of(ClassBytes& bytes, BufferClass buffer_class) { return bytes[static_cast<size_t>(buffer_class)]; }

  PlaceAccount persistent(Place place) const {
    PlaceAccount account;
    account.place = place;
    for (size_t id = 0; id < program_.buffers.size(); ++id) {
      const Buffer& buffer = program_.buffers[id];
      const bool counts = buffer.place == place && buffer.lifetime == Lifetime::kPersistent && buffer.storage == static_cast<BufferId>(id);
      if (counts) add(account, buffer.name, buffer.buffer_class, buffer.bytes);
    }
    return account;
  }

  static void add(PlaceAccount& account, const std::string& name, BufferClass buffer_class, int64_t bytes) {
    if (bytes == 0) return;
    account.objects.push_back({name, buffer_class, bytes});
    account.persistent_bytes += bytes;
    of(account.persistent, buffer_class) += bytes;
  }

  // Adds what is there at the peak beyond persistent storage.
  void finish(PlaceAccount& account, const std::vector<BufferId>& transients, int64_t workspace) const {
    account.at_peak = account.persistent;
    for (BufferId id : transients) {
      const Buffer& buffer = program_.buffers[id];
      of(account.at_peak, buffer.buffer_class) += buffer.bytes;
      account.objects.push_back({buffer.name, buffer.buffer_class, buffer.bytes});
    }
    if (workspace > 0) {
      of(account.at_peak, BufferClass::kWorkspace) += workspace;
      account.objects.push_back({"workspace of " + stage_name(program_, account.peak_stage), BufferClass::kWorkspace, workspace});
    }
    std::stable_sort(account.objects.begin(), account.objects.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  }

  PlaceAccount gpu(int32_t rank) const {
    PlaceAccount account = persistent(Place::gpu(rank));
    for (int lane = 0; lane < program::kRankLanes; ++lane) {
      const LaneId id{static_cast<Lane>(lane), rank};
      if (id.lane == Lane::kCompute) continue;
      int64_t largest = 0;
      for (StageId stage : lanes_.stages[program::lane_index(program_, id)]) largest = std::max(largest, program_.stages[stage].cost.workspace_bytes);
      add(account, cat("workspace of lane ", lane_name(id.lane)), BufferClass::kWorkspace, largest);
    }
    const auto& stages = lanes_.stages[program::lane_index(program_, {Lane::kCompute, rank})];
    const std::vector<Interval> intervals = transients_of(rank);
    // Differences of the live transients from one stage to the next, then their running sum.
    std::vector<ClassBytes> change(stages.size() + 1, ClassBytes{});
    for (const Interval& interval : intervals) {
      const Buffer& buffer = program_.buffers[interval.buffer];
      of(change[interval.first], buffer.buffer_class) += buffer.bytes;
      of(change[interval.last + 1], buffer.buffer_class) -= buffer.bytes;
    }
    account.peak_bytes = account.persistent_bytes;
    ClassBytes live = account.persistent;
    int peak = kNone;
    for (size_t at = 0; at < stages.size(); ++at) {
      for (size_t c = 0; c < live.size(); ++c) live[c] += change[at][c];
      ClassBytes now = live;
      of(now, BufferClass::kWorkspace) += program_.stages[stages[at]].cost.workspace_bytes;
      const int64_t bytes = std::accumulate(now.begin(), now.end(), int64_t{0});
      account.live.push_back({stages[at], bytes, now});
      if (bytes <= account.peak_bytes) continue;
      account.peak_bytes = bytes;
      peak = static_cast<int>(at);
    }
    std::vector<BufferId> at_peak;
    if (peak != kNone) {
      account.peak_stage = stages[peak];
      for (const Interval& interval : intervals) {
        if (interval.first <= peak && peak <= interval.last) at_peak.push_back(interval.buffer);
      }
    }
    finish(account, at_peak, peak == kNone ? 0 : program_.stages[account.peak_stage].cost.workspace_bytes);
    return account;
  }

  std::vector<Interval> transients_of(int32_t rank) const {
    std::vector<Interval> intervals;
    for (size_t id = 0; id < program_.buffers.size(); ++id) {
      const Buffer& buffer = program_.buffers[id];
      if (buffer.lifetime != Lifetime::kTransient || buffer.place != Place::gpu(rank) || accesses_[id].empty()) continue;
      for (StageId stage : {accesses_[id].front(), accesses_[id].back()}) {
        OOM_CHECK((program_.stages[stage].lane == LaneId{Lane::kCompute, rank}), "the life of transient buffer '", buffer.name, "' begins or ends in ",
                  stage_name(program_, stage));
      }
      intervals.push_back({static_cast<BufferId>(id), lanes_.position[accesses_[id].front()], lanes_.position[accesses_[id].back()]});
    }
    return intervals;
  }

  PlaceAccount host(int32_t node) const {
    PlaceAccount account = persistent(Place::numa(node));
    account.peak_bytes = account.persistent_bytes;
    std::vector<BufferId> transients;
    for (size_t id = 0; id < program_.buffers.size(); ++id) {
      const Buffer& buffer = program_.buffers[id];
      const bool counts = buffer.place == Place::numa(node) && buffer.lifetime == Lifetime::kTransient && !accesses_[id].empty();
      if (counts) transients.push_back(static_cast<BufferId>(id));
    }
    std::vector<BufferId> at_peak;
    if (!transients.empty()) {
      program::UnrolledRun run(program_, lanes_, 3, false);
      OOM_CHECK(run.run().empty(), "stages wait for each other for ever; the verifier names them");
      for (size_t id = 0; id < program_.stages.size(); ++id) {
        const auto stage = static_cast<StageId>(id);
        std::vector<BufferId> live;
        ClassBytes classes = account.persistent;
        for (BufferId buffer : transients) {
          if (!may_exist(run, buffer, stage)) continue;
          live.push_back(buffer);
          of(classes, program_.buffers[buffer].buffer_class) += program_.buffers[buffer].bytes;
        }
        const int64_t bytes = std::accumulate(classes.begin(), classes.end(), int64_t{0});
        account.live.push_back({stage, bytes, classes});
        if (bytes <= account.peak_bytes) continue;
        account.peak_bytes = bytes;
        account.peak_stage = stage;
        at_peak = live;
      }
    }
    finish(account, at_peak, 0);
    return account;
  }

  // True when `buffer` of this step, the one before or the one after may exist while `stage` runs.
  bool may_exist(const program::UnrolledRun& run, BufferId buffer, StageId stage) const {
    const auto& users = accesses_[buffer];
    for (int step = 0; step < 3; ++step) {
      if (run.ordered({1, stage}, {step, users.front()})) continue;  // not yet there
      const bool gone = std::all_of(users.begin(), users.end(), [&](StageId user) { return run.ordered({step, user}, {1, stage}); });
      if (!gone) return true;
    }
    return false;
  }

  const Program& program_;
  LaneOrder lanes_;
  std::vector<std::vector<StageId>> accesses_;  // [buffer] in emission order
};

}  // namespace

MemoryAccount account_memory(const Program& program) { return Accountant(program).run(); }

}  // namespace abi_1
}  // namespace oom
