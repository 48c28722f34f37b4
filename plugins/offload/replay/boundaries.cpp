#include "boundaries.h"

#include <algorithm>

namespace oom::offload {

Boundaries::Boundaries(StepEmitter& emitter, const Policy& policy, bool training)
    : emitter_(emitter), policy_(policy), layers_(static_cast<int>(policy.layers.size())), first_staying_(first_staying(layers_, policy.buffers, [&](int layer) { return groups_heads(emitter, policy, layer); })),
      forward_(layers_ + 1), gpu_(layers_ + 1), host_(layers_ + 1) {
  const int64_t bytes = emitter.boundary_bytes();
  if (has_one()) ring_ = emitter.add_device_buffer("layer input", bytes, BufferClass::kBoundary);
  for (int layer = 0; layer < layers_ && training; ++layer) {
    const Boundary place = policy.layers[layer].boundary;
    if (policy.layers[layer].retain_attention && place != Boundary::kGpu) {
      if (!stays(layer)) gpu_[layer] = emitter.add_activation(cat("retained boundary ", layer), bytes, BufferClass::kRetained);
      continue;
    }
    if (place == Boundary::kGpu) gpu_[layer] = emitter.add_device_buffer(cat("boundary ", layer), bytes, BufferClass::kBoundary);
    if (place == Boundary::kHost && !stays(layer)) host_[layer] = emitter.add_host_buffer(cat("boundary ", layer), bytes, BufferClass::kBoundary);
  }
}

Activation Boundaries::written(int layer) {
  if (!gpu_[layer].empty()) return emitter_.all_tokens(gpu_[layer]);
  if (has_one()) return emitter_.all_tokens(ring_);
  if (forward_[layer].empty()) forward_[layer] = emitter_.add_activation(cat("input of layer ", layer), emitter_.boundary_bytes(), BufferClass::kBoundary);
  return emitter_.all_tokens(forward_[layer]);
}

void Boundaries::store(int layer) {
  if (host_[layer].empty()) return;
  emitter_.emit_store("boundary_out", layer, written(layer).buffers, host_[layer], emitter_.boundary_bytes());
  if (!has_one()) leaving_.push_back(layer);
}

void Boundaries::make_room(int layer, bool all) {
  if (has_one()) return;
  const auto count = [&](int begin, int end) { return std::count_if(gpu_.begin() + begin, gpu_.begin() + end, [](const RankBuffers& on_gpu) { return on_gpu.empty(); }); };
  int64_t room = policy_.buffers - count(layer, layer + 2) - (layer > first_staying_ ? count(first_staying_, layer) : 0);
  if (all) room = 0;
  while (!leaving_.empty() && leaving_.front() < layer && static_cast<int64_t>(leaving_.size()) - (leaving_.back() == layer ? 1 : 0) > room) {
    emitter_.emit_release(layer, forward_[leaving_.front()]);
    leaving_.pop_front();
  }
}

void Boundaries::end_forward() {
  for (; !leaving_.empty(); leaving_.pop_front()) emitter_.emit_release(layers_ - 1, forward_[leaving_.front()]);
}

int Boundaries::source(int layer) const {
  while (regenerates(layer)) --layer;
  return layer;
}

bool Boundaries::reserve(int layer, int pass_layer) {
  if (loaded_.contains(layer)) return true;
  int64_t there = static_cast<int64_t>(loaded_.size());
  for (int other = first_staying_; other <= pass_layer; ++other) there += gpu_[other].empty() ? 1 : 0;
  if (there >= policy_.buffers || has_one()) return false;
  const RankBuffers slots = emitter_.add_activation(cat("input of layer ", layer, " from the host"), emitter_.boundary_bytes(), BufferClass::kBoundary);
  emitter_.emit_reserve(pass_layer, slots);
  loaded_[layer] = {slots, false};
  return true;
}

Activation Boundaries::stored(int layer) {
  if (host_[layer].empty()) return written(layer);
  if (has_one()) {
    if (!loaded_.contains(layer)) loaded_ = {{layer, {ring_, false}}};
  } else {
    OOM_CHECK(reserve(layer, layer), "the input of layer ", layer, " has no buffer among ", policy_.buffers);
  }
  Loaded& loaded = loaded_.at(layer);
  if (!loaded.filled) emitter_.emit_load("boundary_in", layer, host_[layer], loaded.slots, emitter_.boundary_bytes());
  loaded.filled = true;
  return emitter_.all_tokens(loaded.slots);
}

void Boundaries::regenerate(int layer, Decoder& decoder) {
  const int from = source(layer);
  Activation x = stored(from);
  if (policy_.regenerates_in_ring()) loaded_.clear();
  for (int passed = from; passed < layer; ++passed) {
    const Activation z = policy_.regenerates_in_ring() ? emitter_.all_tokens(ring_) : emitter_.add_rows(cat("regenerated boundary ", passed + 1), 0, x.rows, BufferClass::kBoundary);
    decoder.emit_forward(passed, Pass::kReplay, x, z);
    if (passed + 1 > layer - policy_.regenerate_cap) regenerated_[passed + 1] = z;
    x = z;
  }
}

Activation Boundaries::read(int layer, Decoder& decoder) {
  if (!regenerates(layer)) return stored(layer);
  if (!regenerated_.contains(layer)) regenerate(layer, decoder);
  const Activation x = regenerated_.at(layer);
  regenerated_.erase(layer);
  return x;
}

void Boundaries::let_go_others(int layer) {
  if (has_one()) return;
  std::erase_if(loaded_, [&](const auto& loaded) {
    if (loaded.first != layer) emitter_.emit_release(layer, loaded.second.slots);
    return loaded.first != layer;
  });
}

void Boundaries::done(int layer) {
  if (!has_one()) loaded_.erase(layer);
}

}  // namespace oom::offload
