#include "boundaries.h"

#include <algorithm>

namespace oom::offload {

Boundaries::Boundaries(StepEmitter& emitter, const Policy& policy, bool training)
    : emitter_(emitter), policy_(policy), layers_(static_cast<int>(policy.layers.size())), gpu_(layers_ + 1), host_(layers_ + 1) {
  const int64_t bytes = emitter.boundary_bytes();
  for (int i = 0; i < policy.buffers; ++i) ring_.push_back(emitter.add_device_buffer(cat("boundary ring ", i), bytes, BufferClass::kBoundary));
  for (int layer = 0; layer < layers_ && training; ++layer) {
    const Boundary place = policy.layers[layer].boundary;
    if (policy.layers[layer].retain_attention && place != Boundary::kGpu) {
      if (!stays(layer)) gpu_[layer] = emitter.add_activation(cat("retained boundary ", layer), bytes, BufferClass::kRetained);
      continue;
    }
    if (place == Boundary::kGpu) gpu_[layer] = emitter.add_device_buffer(cat("boundary ", layer), bytes, BufferClass::kBoundary);
    if (place == Boundary::kHost && !stays(layer)) host_[layer] = emitter.add_host_buffer(cat("boundary ", layer), bytes, BufferClass::kBoundary);
  }
  // Backward goes down the ring. The head's input is the first that is no longer needed.
  next_load_ = layers_ % ring_.size();
}

void Boundaries::store(int layer) {
  if (!host_[layer].empty()) emitter_.emit_store("boundary_out", layer, written(layer).buffers, host_[layer], emitter_.boundary_bytes());
}

Activation Boundaries::stored(int layer) {
  if (host_[layer].empty()) return written(layer);
  if (const auto found = loaded_.find(layer); found != loaded_.end()) return emitter_.all_tokens(found->second);
  const RankBuffers& buffers = ring_[next_load_];
  next_load_ = (next_load_ + ring_.size() - 1) % ring_.size();
  emitter_.emit_load("boundary_in", layer, host_[layer], buffers, emitter_.boundary_bytes());
  loaded_ = {{layer, buffers}};
  return emitter_.all_tokens(buffers);
}

void Boundaries::regenerate(int layer, Decoder& decoder) {
  int from = layer;
  while (policy_.layers[from].regenerates() && !stays(from)) --from;
  Activation x = stored(from);
  if (policy_.regenerates_in_ring()) loaded_.clear();
  for (int passed = from; passed < layer; ++passed) {
    const Activation z = policy_.regenerates_in_ring() ? emitter_.all_tokens(ring_[0]) : emitter_.add_rows(cat("regenerated boundary ", passed + 1), 0, x.rows, BufferClass::kBoundary);
    decoder.emit_forward(passed, Pass::kReplay, x, z);
    if (passed + 1 > layer - policy_.regenerate_cap) regenerated_[passed + 1] = z;
    x = z;
  }
}

Activation Boundaries::read(int layer, Decoder& decoder) {
  if (!policy_.layers[layer].regenerates() || stays(layer)) return stored(layer);
  if (!regenerated_.contains(layer)) regenerate(layer, decoder);
  const Activation x = regenerated_.at(layer);
  regenerated_.erase(layer);
  return x;
}

}  // namespace oom::offload
