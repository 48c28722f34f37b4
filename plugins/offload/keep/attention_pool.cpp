#include "attention_pool.h"

#include <algorithm>

namespace oom::offload {

AttentionPool::AttentionPool(StepEmitter& emitter, const Policy& policy) : emitter_(emitter), policy_(policy), host_(policy.layers.size()) {
  int64_t largest = 0;
  int kept = 0;
  for (int layer = 0; layer < static_cast<int>(policy.layers.size()); ++layer) {
    if (!keeps(layer)) continue;
    const int64_t bytes = emitter.keep_bytes(layer, emitter.plan().sequences_per_rank());
    host_[layer] = emitter.add_host_buffer(cat("attention results layer ", layer), bytes, BufferClass::kResult);
    largest = std::max(largest, bytes);
    ++kept;
  }
  const int buffers = std::min(kept, static_cast<int>(policy.result_buffers()));
  for (int i = 0; i < buffers; ++i) staging_.push_back(emitter.add_device_buffer(cat("attention results ", i), largest, BufferClass::kResult));
  held_.assign(staging_.size(), -1);
}

size_t AttentionPool::take(int layer) {
  const size_t slot = next_;
  next_ = (next_ + 1) % staging_.size();
  held_[slot] = layer;
  return slot;
}

AttentionResults AttentionPool::fill(int layer) { return keeps(layer) ? staged(take(layer)) : AttentionResults{}; }

void AttentionPool::store(int layer) {
  if (!keeps(layer)) return;
  const size_t slot = std::find(held_.begin(), held_.end(), layer) - held_.begin();
  emitter_.emit_store("attention_out", layer, staging_.at(slot), host_[layer], emitter_.keep_bytes(layer, emitter_.plan().sequences_per_rank()));
}

AttentionResults AttentionPool::fetch(int layer) {
  if (!keeps(layer)) return {};
  if (const auto found = std::find(held_.begin(), held_.end(), layer); found != held_.end()) return staged(found - held_.begin());
  const size_t slot = take(layer);
  emitter_.emit_load("attention_in", layer, host_[layer], staging_[slot], emitter_.keep_bytes(layer, emitter_.plan().sequences_per_rank()));
  return staged(slot);
}

}  // namespace oom::offload
