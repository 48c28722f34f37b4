#include "runtime/unit_table.h"

#include <algorithm>

#include "runtime/deferral.h"
#include "runtime/device_state.h"

namespace oom::runtime {
namespace {

std::vector<int> readers_of(const ParameterUnit& unit, int ranks) {
  if (!unit.readers.empty()) return unit.readers;
  std::vector<int> all(ranks);
  for (int rank = 0; rank < ranks; ++rank) all[rank] = rank;
  return all;
}

bool contains(const std::vector<int>& values, int value) { return std::find(values.begin(), values.end(), value) != values.end(); }

bool same_shards(const std::vector<ShardRange>& left, const std::vector<ShardRange>& right) {
  return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                    [](const ShardRange& a, const ShardRange& b) { return a.owner == b.owner && a.begin == b.begin && a.end == b.end; });
}

// Gaps between pieces hold zeros that are summed along; they must be the same gaps for all units that share buffers.
bool same_pieces(const std::vector<UnitPiece>& left, const std::vector<UnitPiece>& right) {
  return std::equal(left.begin(), left.end(), right.begin(), right.end(), [](const UnitPiece& a, const UnitPiece& b) { return a.offset == b.offset && a.elements == b.elements; });
}

bool same_shape(const ParameterUnit& left, const ParameterUnit& right) {
  return left.kind == right.kind && left.elements == right.elements && same_shards(left.shards, right.shards) && same_pieces(left.pieces, right.pieces) &&
         left.readers == right.readers && left.sums_slices == right.sums_slices;
}

bool has_gaps(const ParameterUnit& unit) {
  int64_t filled = 0;
  for (const UnitPiece& piece : unit.pieces) filled += piece.elements;
  return filled < unit.elements;
}

const char* kind_name(UnitKind kind) { return kind == UnitKind::kBank ? "bank" : kind == UnitKind::kOrdinary ? "ordinary" : "vocabulary"; }

}  // namespace

BufferId StreamContext::add(const std::string& name, Place place, int64_t bytes, BufferClass buffer_class) const {
  const BufferId buffer = program.add_buffer({.name = name, .place = place, .bytes = bytes, .buffer_class = buffer_class});
  storage.place(storage.add(name, place, bytes, buffer_class), buffer, 0);
  return buffer;
}

Place UnitRecord::home(size_t shard, const Plan& plan) const {
  const int owner = unit.shards.at(shard).owner;
  return resident ? Place::gpu(owner) : Place::numa(plan.node_of_rank.at(owner));
}

bool UnitTable::is_resident(const ParameterUnit& unit) const {
  if (unit.kind == UnitKind::kBank) return contains(context_.plan.resident_layers, unit.layer);
  const OrdinaryResidency resident = context_.plan.resident_ordinary;
  return resident == OrdinaryResidency::kAll || (resident == OrdinaryResidency::kEmbedding && unit.layer == kEmbeddingLayer);
}

// Some layers wait so that the host's update threads have work in both halves of a step. An update on a GPU has nothing to gain from that: it waits
// only where all do, because a norm of everything is asked for or nothing may change before all gradients are known to be finite.
bool UnitTable::is_deferred(const ParameterUnit& unit) const {
  const int deferred = context_.plan.deferred_layers;
  const bool all_wait = deferred >= static_cast<int>(context_.model.layers.size());
  if (all_wait || is_resident(unit) || unit.layer == kHeadLayer) return all_wait;
  if (unit.layer == kEmbeddingLayer) return deferred > 0;
  return contains(waiting_, unit.layer);
}

UnitTable::UnitTable(StreamContext context, bool every_unit_updates)
    : context_(context), every_unit_updates_(every_unit_updates), waiting_(waiting_layers(context.plan, context.model)) {}

UnitId UnitTable::add(ParameterUnit unit) {
  const UnitId id = count();
  const auto found = std::find_if(classes_.begin(), classes_.end(), [&](const UnitClass& shared) { return same_shape(shared.shape, unit); });
  UnitRecord record;
  record.unit_class = static_cast<int>(found - classes_.begin());
  if (found == classes_.end()) classes_.push_back(make_class(unit));
  record.readers = readers_of(unit, context_.plan.ranks);
  record.resident = is_resident(unit);
  record.deferred = is_deferred(unit);
  record.host_reduced = !context_.plan.transfer.reduce_on_gpu && !record.resident && record.readers.size() > 1;
  record.unit = std::move(unit);
  const bool keeps = record.resident ? context_.plan.resident_cached_weights : context_.plan.cached_weights;
  for (size_t s = 0; s < record.unit.shards.size(); ++s) {
    const ShardRange& shard = record.unit.shards[s];
    const Place home = record.home(s, context_.plan);
    const std::string name = cat(record.unit.name, " shard ", shard.owner);
    record.state.push_back(context_.add("state " + name, home, optim::state_bytes(shard.elements()), BufferClass::kState));
    record.kept.push_back(keeps ? context_.add("weights " + name, home, shard.elements() * context_.weight_bytes(), BufferClass::kWorkingWeight) : kNone);
    record.norm.push_back(context_.add("norm " + name, Place::numa(context_.node_of(shard.owner)), 64, BufferClass::kResult));
    if (!record.resident) continue;
    OOM_CHECK(contains(record.readers, shard.owner), name, " is resident with an owner that does not compute with it");
    record.device_norm.push_back(context_.add("device norm " + name, home, 64, BufferClass::kResult));
    add_state_access(shard.owner);
  }
  if (every_unit_updates_) add_shards(record);
  records_.push_back(std::move(record));
  return id;
}

// Checkpoints and loading reach a GPU's state through pinned memory of a bounded size. No stage touches it.
void UnitTable::add_state_access(int rank) {
  state_access_.resize(context_.plan.ranks, false);
  if (state_access_[rank]) return;
  state_access_[rank] = true;
  context_.add(DeviceState::staging_name(rank), Place::numa(context_.node_of(rank)), DeviceState::kStagingBytes, BufferClass::kStaging);
}

void UnitTable::add_shards(UnitRecord& record) const {
  for (const ShardRange& shard : record.unit.shards) record.shards.push_back(context_.program.add_shard(cat(record.unit.name, " shard ", shard.owner), record.unit.layer, shard.owner));
}

UnitClass UnitTable::make_class(const ParameterUnit& unit) const {
  UnitClass shared;
  shared.name = cat(kind_name(unit.kind), " ", classes_.size());
  shared.shape = unit;
  shared.readers = readers_of(unit, context_.plan.ranks);
  const bool fp32 = context_.plan.workload.compute == ElementType::kFloat32 || unit.kind != UnitKind::kBank || unit.sums_slices;
  shared.gradient_type = fp32 ? ElementType::kFloat32 : context_.plan.workload.gradients;
  // The vocabulary is used once a step and needs no second buffer.
  const bool once = unit.kind == UnitKind::kVocabulary;
  shared.windows = once ? 1 : context_.plan.transfer.windows;
  const TransferPlan& transfer = context_.plan.transfer;
  shared.gradient_slots = once ? 1 : unit.kind == UnitKind::kBank ? transfer.gradient_slots : transfer.ordinary_gradient_slots;
  shared.held.assign(shared.windows, -1);
  return shared;
}

// One range of memory a rank, whose parts are the shards' buffers.
ShardBuffers UnitTable::add_range(const UnitClass& shared, const std::string& name, int rank, int64_t element_size, BufferClass buffer_class) const {
  const int request = context_.storage.add(name, Place::gpu(rank), shared.shape.elements * element_size, buffer_class);
  ShardBuffers buffers;
  for (const ShardRange& shard : shared.shards()) {
    buffers.push_back(context_.program.add_buffer(
        {.name = cat(name, " shard ", shard.owner), .place = Place::gpu(rank), .bytes = shard.elements() * element_size, .buffer_class = buffer_class}));
    context_.storage.place(request, buffers.back(), shard.begin * element_size);
  }
  return buffers;
}

// The same with the bytes of another class's buffer, to which each leaves them in turn.
ShardBuffers UnitTable::add_lent(const UnitClass& shared, const std::string& name, int rank, int64_t element_size, BufferClass buffer_class, const ShardBuffers& lender) const {
  const BufferId buffer = context_.program.add_buffer(
      {.name = cat(name, " shard ", shared.shards()[0].owner), .place = Place::gpu(rank), .bytes = shared.shape.elements * element_size, .buffer_class = buffer_class, .shares = lender[0]});
  context_.storage.place_at(lender[0], buffer);
  return {buffer};
}

UnitClass* UnitTable::bank_beside(const UnitClass& shared) {
  if (shared.shape.kind != UnitKind::kVocabulary || context_.plan.transfer.windows > 1 || shared.shards().size() > 1 || shared.readers.size() > 1) return nullptr;
  const auto found = std::find_if(classes_.begin(), classes_.end(), [&](const UnitClass& other) {
    return other.shape.kind == UnitKind::kBank && other.shards().size() == 1 && other.readers == shared.readers && other.shape.elements >= shared.shape.elements;
  });
  return found == classes_.end() ? nullptr : &*found;
}

void UnitTable::empty_windows_beside(const UnitClass& shared) {
  if (shared.takes_turns_with < 0) return;
  std::vector<UnitId>& held = classes_[shared.takes_turns_with].held;
  std::fill(held.begin(), held.end(), -1);
}

void UnitTable::need_windows(UnitClass& shared) {
  if (!shared.window.empty()) return;
  UnitClass* bank = bank_beside(shared);
  const auto has_window = [&](const UnitRecord& record) { return &classes_[record.unit_class] == bank && !record.read_in_place(); };
  if (bank && (bank->takes_turns_with >= 0 || std::none_of(records_.begin(), records_.end(), has_window))) bank = nullptr;
  if (bank) {
    need_windows(*bank);
    shared.takes_turns_with = static_cast<int>(bank - classes_.data());
    bank->takes_turns_with = static_cast<int>(&shared - classes_.data());
  }
  for (int w = 0; w < shared.windows; ++w) {
    shared.window.emplace_back(context_.plan.ranks);
    for (const int rank : shared.readers) {
      const std::string name = cat(shared.name, " window ", w, " rank ", rank);
      shared.window[w][rank] = bank ? add_lent(shared, name, rank, context_.weight_bytes(), BufferClass::kWorkingWeight, bank->window[0][rank])
                                    : add_range(shared, name, rank, context_.weight_bytes(), BufferClass::kWorkingWeight);
    }
  }
}

void UnitTable::need_gradients(UnitClass& shared) {
  if (!shared.gradient.empty()) return;
  // Gradients of a tied embedding are there from the head to the end of the step, and what one class leaves in the gaps of the other would be summed along.
  UnitClass* bank = context_.model.tied_embeddings ? nullptr : bank_beside(shared);
  if (bank && (has_gaps(bank->shape) || has_gaps(shared.shape) ||
               bank->shape.elements * element_bytes(bank->gradient_type) < shared.shape.elements * element_bytes(shared.gradient_type))) {
    bank = nullptr;
  }
  if (bank) need_gradients(*bank);
  for (int g = 0; g < shared.windows; ++g) {
    shared.gradient.emplace_back(context_.plan.ranks);
    for (const int rank : shared.readers) {
      const std::string name = cat(shared.name, " gradient ", g, " rank ", rank);
      const int64_t element = element_bytes(shared.gradient_type);
      shared.gradient[g][rank] = bank ? add_lent(shared, name, rank, element, BufferClass::kGradient, bank->gradient[0][rank]) : add_range(shared, name, rank, element, BufferClass::kGradient);
    }
  }
}

void UnitTable::need_reduction(UnitClass& shared) const {
  if (!shared.partial.empty()) return;
  for (const ShardRange& shard : shared.shards()) {
    const std::string suffix = cat(" shard ", shard.owner);
    const Place gpu = Place::gpu(shard.owner);
    ShardBuffers& partial = shared.partial.emplace_back(context_.plan.ranks, kNone);
    for (const int rank : shared.readers) {
      if (rank == shard.owner) continue;
      partial[rank] = context_.add(cat(shared.name, " partial of rank ", rank, suffix), gpu, shard.elements() * element_bytes(shared.gradient_type), BufferClass::kStaging);
    }
    shared.norm.push_back(context_.add(cat(shared.name, " norm", suffix), gpu, 64, BufferClass::kResult));
    shared.scratch.push_back(context_.add(cat(shared.name, " reduction scratch", suffix), gpu, comm::DeviceTransfer::reduction_scratch_bytes(shard.elements()), BufferClass::kWorkspace));
  }
}

const ShardBuffers& UnitTable::need_reduced(UnitClass& shared) const {
  for (size_t s = shared.reduced.size(); s < shared.shards().size(); ++s) {
    const ShardRange& shard = shared.shards()[s];
    shared.reduced.push_back(context_.add(cat(shared.name, " reduced shard ", shard.owner), Place::gpu(shard.owner), shard.elements() * context_.gradient_bytes(), BufferClass::kGradient));
  }
  return shared.reduced;
}

const ShardBuffers& UnitTable::need_rounded(UnitClass& shared, int rank) const {
  shared.rounded.resize(context_.plan.ranks);
  ShardBuffers& buffers = shared.rounded[rank];
  if (buffers.empty()) buffers = add_range(shared, cat(shared.name, " rounded gradient rank ", rank), rank, context_.gradient_bytes(), BufferClass::kGradient);
  return buffers;
}

const ShardBuffers& UnitTable::next_prepared(UnitClass& shared) const {
  for (int k = static_cast<int>(shared.prepared.size()); k < shared.windows; ++k) {
    ShardBuffers& slot = shared.prepared.emplace_back();
    for (const ShardRange& shard : shared.shards()) {
      slot.push_back(context_.add(cat(shared.name, " prepared weights ", k, " shard ", shard.owner), Place::numa(context_.node_of(shard.owner)), shard.elements() * context_.weight_bytes(),
                                  BufferClass::kStaging));
    }
  }
  const ShardBuffers& slot = shared.prepared[shared.next_prepared];
  shared.next_prepared = (shared.next_prepared + 1) % shared.windows;
  return slot;
}

// Where a shard's reduced gradient waits for its update, or each rank's partial where the update is what reduces.
ShardPartials UnitTable::add_slot(const UnitRecord& record, const std::string& name) const {
  ShardPartials slot;
  for (size_t s = 0; s < record.unit.shards.size(); ++s) {
    const ShardRange& shard = record.unit.shards[s];
    const Place home = record.home(s, context_.plan);
    const std::string shard_name = cat(name, " shard ", shard.owner);
    const auto add = [&](const std::string& full_name) { return context_.add(full_name, home, shard.elements() * context_.gradient_bytes(), BufferClass::kGradient); };
    std::vector<BufferId>& partials = slot.emplace_back();
    if (!record.host_reduced) partials.push_back(add(shard_name));
    for (size_t r = 0; record.host_reduced && r < record.readers.size(); ++r) partials.push_back(add(cat(shard_name, " of rank ", record.readers[r])));
  }
  return slot;
}

const ShardPartials& UnitTable::next_slot(UnitId id) {
  UnitRecord& record = this->record(id);
  if (record.deferred) return need_pending(record);
  OOM_CHECK(!record.resident, record.unit.name, " keeps its gradients on the GPU");
  UnitClass& shared = class_of(id);
  for (int k = static_cast<int>(shared.slots.size()); k < shared.gradient_slots; ++k) shared.slots.push_back(add_slot(record, cat(shared.name, " gradient slot ", k)));
  const ShardPartials& slot = shared.slots[shared.next_slot];
  shared.next_slot = (shared.next_slot + 1) % shared.gradient_slots;
  return slot;
}

const ShardPartials& UnitTable::need_pending(UnitRecord& record) const {
  if (record.pending.empty()) record.pending = add_slot(record, cat(record.unit.name, " pending gradient"));
  return record.pending;
}

}  // namespace oom::runtime
