#include "attention_pool.h"

#include <algorithm>

namespace oom::offload {

AttentionPool::AttentionPool(StepEmitter& emitter, const Policy& policy) : emitter_(emitter), policy_(policy), host_(policy.layers.size()) {
  int64_t largest = 0;
  for (int layer = 0; layer < static_cast<int>(policy.layers.size()); ++layer) {
    if (!keeps(layer)) continue;
    host_[layer] = emitter.add_host_buffer(cat("attention results layer ", layer), bytes(layer), BufferClass::kResult);
    largest = std::max(largest, bytes(layer));
  }
  if (has_one() && largest > 0) place_ = emitter.add_device_buffer("attention results", largest, BufferClass::kResult);
}

std::deque<AttentionPool::Held>::iterator AttentionPool::find(int layer) {
  return std::find_if(held_.begin(), held_.end(), [&](const Held& held) { return held.layer == layer; });
}

AttentionPool::Held& AttentionPool::take(int layer, int pass_layer) {
  if (is_full()) held_.pop_front();
  if (has_one()) return held_.emplace_back(Held{layer, place_, false});
  held_.push_back({layer, emitter_.add_activation(cat("kept attention results layer ", layer), bytes(layer), BufferClass::kResult), false});
  emitter_.emit_reserve(pass_layer, held_.back().slots);
  return held_.back();
}

AttentionResults AttentionPool::fill(int layer) {
  if (!keeps(layer)) return {};
  if (is_full()) release(held_.front().layer, layer);
  return {take(layer, layer).slots, 0, emitter_.plan().sequences_per_rank()};
}

void AttentionPool::store(int layer) {
  if (!keeps(layer)) return;
  Held& held = *find(layer);
  emitter_.emit_store("attention_out", layer, held.slots, host_[layer], bytes(layer));
  held.filled = true;
}

void AttentionPool::release(int last, int layer) {
  while (!has_one() && !held_.empty() && held_.front().layer <= last) {
    emitter_.emit_release(layer, held_.front().slots);
    held_.pop_front();
  }
}

void AttentionPool::end_forward() {
  const int last = static_cast<int>(host_.size()) - 1;
  release(last - 1, last);
}

AttentionResults AttentionPool::fetch(int layer) {
  if (!keeps(layer)) return {};
  const auto found = find(layer);
  Held& held = found != held_.end() ? *found : take(layer, layer);
  if (!held.filled) emitter_.emit_load("attention_in", layer, host_[layer], held.slots, bytes(layer));
  held.filled = true;
  return {held.slots, 0, emitter_.plan().sequences_per_rank()};
}

void AttentionPool::keep_only(int layer, int other) {
  if (!has_one()) std::erase_if(held_, [&](const Held& held) { return held.layer != layer && held.layer != other; });
}

void AttentionPool::reserve(int layer, int pass_layer, bool in_use) {
  if (has_one() || !keeps(layer) || find(layer) != held_.end()) return;
  if (in_use && is_full() && held_.front().layer == pass_layer) return;
  take(layer, pass_layer);
}

}  // namespace oom::offload
