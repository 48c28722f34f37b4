#include "runtime/shard_updates.h"

#include <cmath>

namespace oom::runtime {
namespace {

// Share of the GPU that a stream through its memory takes from matrix products beside it: an estimate.
constexpr double kDeviceUpdateShare = 0.5;

// The job over `work`'s memory, whose spans refer to `partials` and to `work`.
template <typename Work>
optim::AdamWJob make_job(const StreamContext& context, const Work& work, std::vector<const void*>& partials, int64_t gradient_step) {
  for (const BufferId partial : work.gradient) partials.push_back(context.memory.data(partial));
  optim::AdamWJob job{.state = optim::StateBlocks(static_cast<float*>(context.memory.data(work.state)), work.count),
                      .gradients = {as_optim(context.plan.workload.gradients), partials},
                      .gradient_scale = work.clip == kNone ? 1.0f : static_cast<float>(*static_cast<const double*>(context.memory.data(work.clip))),
                      .step = context.run.hyper(gradient_step),
                      .without_decay = {},
                      .publish = {as_optim(context.plan.workload.compute), work.kept == kNone ? nullptr : context.memory.data(work.kept)}};
  if (!context.run.decay_norms) job.without_decay = work.undecayed;
  return job;
}

}  // namespace

void check_finite(double sum_of_squares, const std::string& unit, int owner, int64_t step) {
  if (std::isfinite(sum_of_squares)) return;
  throw DivergedError(cat("step ", step, ": the gradient of ", unit, " (shard of rank ", owner,
                          ") is not finite; lower train.learning_rate or set train.clip_norm"));
}

void ShardUpdates::emit(UnitId id) {
  UnitRecord& record = units_.record(id);
  record.update_pending = false;
  record.window = -1;  // what a window holds is old from here on
  if (record.shards.empty()) units_.add_shards(record);
  for (size_t s = 0; s < record.unit.shards.size(); ++s) {
    if (record.resident) {
      emit_on_device(record, s);
    } else {
      emit_on_host(record, s);
    }
  }
}

ShardUpdates::Work ShardUpdates::work_of(const UnitRecord& record, size_t s) const {
  const ShardRange& shard = record.unit.shards[s];
  Work work{.state = record.state[s], .kept = record.kept[s], .norm = record.resident ? record.device_norm[s] : record.norm[s], .clip = clip_, .gradient = record.gradient[s],
            .count = shard.elements(), .owner = shard.owner, .delay = record.deferred ? 1 : 0, .name = record.unit.name, .undecayed = {}, .trained = {}};
  for (const UnitPiece& piece : record.unit.pieces) {
    const ParameterSpec& spec = context_.model.parameters.at(piece.parameter);
    const int64_t begin = std::max(piece.offset, shard.begin) - shard.begin;
    const int64_t end = std::min(piece.offset + piece.elements, shard.end) - shard.begin;
    if (begin >= end) continue;
    if (spec.trained) work.trained.push_back({begin, end});
    if (spec.shape.size() <= 1) work.undecayed.push_back({begin, end});
  }
  return work;
}

void ShardUpdates::emit_on_host(const UnitRecord& record, size_t s) {
  const int owner = record.unit.shards[s].owner, node = context_.node_of(owner);
  const double count = static_cast<double>(record.unit.shards[s].elements());
  const int64_t published = record.kept[s] == kNone ? 0 : context_.weight_bytes();
  Cost cost{.update_parameters = count, .parameters = count};
  cost.host_bytes[node] = count * static_cast<double>(24 + context_.gradient_bytes() * static_cast<int64_t>(record.gradient[s].size()) + published);
  StageSpec spec{.kind = "update", .layer = record.unit.layer, .part = static_cast<int>(s), .rank = owner, .lane = {Lane::kUpdate, node}, .reads = record.gradient[s],
                 .updates = {record.state[s]}, .updates_shard = record.shards[s], .cost = cost};
  spec.reads.push_back(record.norm[s]);
  if (clip_ != kNone) spec.reads.push_back(clip_);
  if (record.kept[s] != kNone) spec.writes = {record.kept[s]};
  spec.action = [&context = context_, work = work_of(record, s), node](StageContext& stage) {
    const int64_t gradient_step = stage.step - work.delay;
    if (gradient_step < context.run.first_step) return;  // nothing is pending from before the first step
    check_finite(*static_cast<const double*>(context.memory.data(work.norm)), work.name, work.owner, gradient_step);
    std::vector<const void*> partials;
    const optim::AdamWJob job = make_job(context, work, partials, gradient_step);
    for (const optim::ElementRange& range : work.trained) optim::adamw_update_parallel(*context.pools.update.at(node), job, range.begin, range.end);
  };
  context_.program.emit(std::move(spec));
}

void ShardUpdates::emit_on_device(const UnitRecord& record, size_t s) {
  const int owner = record.unit.shards[s].owner;
  const double count = static_cast<double>(record.unit.shards[s].elements());
  const int64_t published = record.kept[s] == kNone ? 0 : context_.weight_bytes();
  StageSpec spec{.kind = "resident_update", .layer = record.unit.layer, .part = static_cast<int>(s), .lane = {record.way_out(), owner}, .reads = record.gradient[s],
                 .updates = {record.state[s]}, .updates_shard = record.shards[s],
                 .cost = {.hbm_bytes = count * static_cast<double>(24 + context_.gradient_bytes() + published), .sm_share = kDeviceUpdateShare, .parameters = count}};
  spec.reads.push_back(record.device_norm[s]);
  if (clip_ != kNone) spec.reads.push_back(clip_);
  if (record.kept[s] != kNone) spec.writes = {record.kept[s]};
  spec.action = [&context = context_, work = work_of(record, s)](StageContext& stage) {
    const int64_t gradient_step = stage.step - work.delay;
    if (gradient_step < context.run.first_step) return;
    std::vector<const void*> partials;
    const optim::AdamWJob job = make_job(context, work, partials, gradient_step);
    context.transfer.update_state(job, work.trained, static_cast<const double*>(context.memory.data(work.norm)), stage.stream);
  };
  context_.program.emit(std::move(spec));
}

}  // namespace oom::runtime
