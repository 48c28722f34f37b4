#include "program_reading.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>

namespace oom::offload {
namespace {

bool begins_with(const std::string& text, const char* prefix) { return text.rfind(prefix, 0) == 0; }

// The one with the least GPU memory left.
int tightest_rank(const AccountedProgram& step, const PlanningContext& context) {
  int tightest = 0;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int rank = 0; rank < step.program.ranks; ++rank) {
    const int64_t budget = context.gpu_budget_bytes.empty() ? 0 : context.gpu_budget_bytes.at(rank), left = budget - step.account.gpus[rank].peak_bytes;
    if (left < least) {
      least = left;
      tightest = rank;
    }
  }
  return tightest;
}

class Reader {
 public:
  Reader(const AccountedProgram& step, const PlanningContext& context, int layers)
      : program_(step.program), costs_(context.costs), rank_(tightest_rank(step, context)), node_(program_.node_of_rank[rank_]), account_(step.account.gpus[rank_]), lowest_(layers) {
    reading_.rank = rank_;
    reading_.layers.resize(layers);
    in_.resize(layers);
    out_.resize(layers);
    ranks_on_node_ = static_cast<int>(std::count(program_.node_of_rank.begin(), program_.node_of_rank.end(), node_));
  }

  ProgramReading run() {
    while (head_ < static_cast<StageId>(program_.stages.size()) && !(computes(head_) && program_.stages[head_].layer == kHeadLayer)) ++head_;
    OOM_CHECK(head_ < static_cast<StageId>(program_.stages.size()), "a training program without a head");
    for (StageId id = 0; id < static_cast<StageId>(program_.stages.size()); ++id) read_stage(id);
    read_memory();
    for (size_t layer = 0; layer < in_.size(); ++layer) {
      reading_.layers[layer].weights_seconds = *std::max_element(in_[layer].begin(), in_[layer].end());
      reading_.layers[layer].gradients_seconds = *std::max_element(out_[layer].begin(), out_[layer].end());
    }
    return std::move(reading_);
  }

 private:
  using Pass = ProgramReading::Pass;
  using LaneSeconds = std::array<double, kLaneKinds>;

  bool computes(StageId id) const { return program_.stages[id].lane == LaneId{Lane::kCompute, rank_}; }
  bool is_layer(int layer) const { return layer >= 0 && layer < static_cast<int>(reading_.layers.size()); }

  // The pass of a layer that work belongs to. After the head, layers go down one by one; lower ones that come in between are traversed.
  Pass& pass_of(StageId id) {
    const int layer = program_.stages[id].layer;
    if (!is_layer(layer)) return reading_.head;
    ProgramReading::Layer& its = reading_.layers[layer];
    if (id < head_) return its.forward;
    if (layer <= lowest_ - 2) return its.traverse;
    lowest_ = std::min(lowest_, layer);
    return its.backward;
  }

  void read_stage(StageId id) {
    const Stage& stage = program_.stages[id];
    if (computes(id)) {
      Pass& pass = pass_of(id);
      const Demand demand = demand_of(program_, stage, costs_);
      pass.seen = true;
      if (is_layer(stage.layer) && program_.kinds[stage.kind] == "attend_backward") reading_.layers[stage.layer].groups_heads = true;
      pass.seconds += demand.fixed_seconds + demand.compute_seconds;
      passes_.push_back(&pass);
      return;
    }
    const Lane lane = stage.lane.lane;
    if (!is_layer(stage.layer) || lane == Lane::kIssue || stage.lane.index != (is_pool_lane(lane) ? node_ : rank_)) return;
    const std::string& kind = program_.kinds[stage.kind];
    ProgramReading::Layer& layer = reading_.layers[stage.layer];
    const bool before_head = id < head_;
    const size_t at = static_cast<size_t>(lane);
    if (kind == "attention_out") {
      layer.result_bytes = static_cast<int64_t>(stage.cost.bytes);
    } else if (kind == "boundary_out" || kind == "boundary_in" || kind == "attention_in") {
      // Priced by size.
    } else if (lane == Lane::kComm && !begins_with(kind, "weights") && !begins_with(kind, "gradient")) {
      pass_of(id).seconds += seconds_of(stage);  // tokens between ranks, which the layer's own work waits for
    } else if (before_head) {
      in_[stage.layer][at] += seconds_of(stage);
    } else if (!begins_with(kind, "weights")) {
      out_[stage.layer][at] += seconds_of(stage);
    }
  }

  double seconds_of(const Stage& stage) const {
    double seconds = solo_seconds(program_, stage, costs_);
    if (!is_pool_lane(stage.lane.lane)) seconds = std::max(seconds, ranks_on_node_ * (stage.cost.h2d_bytes + stage.cost.d2h_bytes) / costs_.host_io_bytes);
    return seconds;
  }

  // Bytes at each stage of the compute lane, in whose order the account lists them.
  void read_memory() {
    std::map<StageId, size_t> position;
    for (size_t at = 0; at < account_.live.size(); ++at) position[account_.live[at].stage] = at;
    const std::vector<Life> lives = lives_of(position);
    const auto is_input = [&](size_t buffer) { return program_.buffers[buffer].buffer_class == BufferClass::kBoundary; };
    const auto is_kept = [&](size_t buffer) { return lives[buffer].copied && program_.buffers[buffer].buffer_class == BufferClass::kResult; };
    const std::vector<int64_t> kept = live_bytes(lives, position, is_kept);
    const std::vector<int64_t> carried = live_bytes(lives, position, [&](size_t buffer) { return lives[buffer].first < head_ && lives[buffer].last > head_ && !is_input(buffer) && !is_kept(buffer); });
    const auto inputs = [](const ClassBytes& classes) { return classes[static_cast<size_t>(BufferClass::kBoundary)]; };
    for (size_t at = 0; at < account_.live.size(); ++at) {
      const LiveBytes& live = account_.live[at];
      Pass& pass = *passes_.at(at);
      pass.bytes = std::max(pass.bytes, live.bytes - account_.persistent_bytes - (inputs(live.classes) - inputs(account_.persistent)) - kept[at]);
      const int layer = program_.stages[live.stage].layer;
      if (is_layer(layer) && &pass == &reading_.layers[layer].backward) reading_.layers[layer].carried_bytes = std::max(reading_.layers[layer].carried_bytes, carried[at]);
    }
  }

  // Of a transient: the compute stages that touch it first and last, and whether copies do.
  struct Life {
    StageId first = kNone, last = kNone;
    bool copied = false;
  };
  std::vector<Life> lives_of(const std::map<StageId, size_t>& position) const {
    std::vector<Life> lives(program_.buffers.size());
    for (StageId stage = 0; stage < static_cast<StageId>(program_.stages.size()); ++stage) {
      for (const Access& access : program_.stages[stage].accesses) {
        if (program_.buffers[access.buffer].lifetime != Lifetime::kTransient || program_.buffers[access.buffer].place != Place::gpu(rank_)) continue;
        Life& life = lives[access.buffer];
        if (life.first == kNone) life.first = stage;
        life.last = stage;
        life.copied = life.copied || !position.contains(stage);
      }
    }
    return lives;
  }

  template <typename Predicate>
  std::vector<int64_t> live_bytes(const std::vector<Life>& lives, const std::map<StageId, size_t>& position, const Predicate& counts) const {
    std::vector<int64_t> change(position.size() + 1, 0);
    for (size_t buffer = 0; buffer < lives.size(); ++buffer) {
      if (lives[buffer].first == kNone || !counts(buffer)) continue;
      change[position.at(lives[buffer].first)] += program_.buffers[buffer].bytes;
      change[position.at(lives[buffer].last) + 1] -= program_.buffers[buffer].bytes;
    }
    for (size_t at = 1; at < change.size(); ++at) change[at] += change[at - 1];
    return change;
  }

  const Program& program_;
  const CostTable& costs_;
  const int rank_, node_;
  const PlaceAccount& account_;
  int ranks_on_node_ = 1;
  StageId head_ = 0;
  int lowest_;                          // layer whose backward has begun
  std::vector<LaneSeconds> in_, out_;   // by layer and lane
  std::vector<Pass*> passes_;           // of the stages of the compute lane
  ProgramReading reading_;
};

}  // namespace

ProgramReading read_program(const AccountedProgram& step, const PlanningContext& context, int layers) { return Reader(step, context, layers).run(); }

double copy_seconds(const CostTable& costs, const char* kind, double bytes, bool to_host, int ranks_on_node) {
  double fixed = 0, seconds = std::max({bytes / (to_host ? costs.d2h_bytes : costs.h2d_bytes), bytes / costs.pcie_bytes, ranks_on_node * bytes / costs.host_io_bytes,
                                        ranks_on_node * bytes / costs.host_dram_bytes});
  if (const auto fit = costs.kinds.find(kind); fit != costs.kinds.end()) {
    fixed = fit->second.fixed;
    seconds = std::max(seconds, fit->second.per_byte * bytes);
  }
  return fixed + seconds;
}

}  // namespace oom::offload
