#include "offload.h"

namespace oom::offload {
namespace {

// The input of layer l lies in ring[l % kRing] on the GPU. Three of them: one is read, one is written, one is on its way to the host. The inputs of
// the last kRing - 1 layers are still there when the backward begins, so they never travel.
constexpr int kRing = 3;
constexpr int kLoads = 2;

struct Boundaries {
  std::vector<RankBuffers> ring;   // on the GPU
  std::vector<RankBuffers> host;   // by layer; empty for layers whose input stays in the ring
  std::vector<RankBuffers> loads;  // on the GPU: brought back for the backward
};

Boundaries add_boundaries(StepEmitter& emitter, int layers, bool training) {
  Boundaries boundaries;
  for (int i = 0; i < kRing; ++i) boundaries.ring.push_back(emitter.add_device_buffer(cat("boundary ring ", i), emitter.boundary_bytes(), BufferClass::kBoundary));
  if (!training) return boundaries;
  const int stored = std::max(0, layers - (kRing - 1));
  for (int layer = 0; layer < stored; ++layer) boundaries.host.push_back(emitter.add_host_buffer(cat("boundary ", layer), emitter.boundary_bytes(), BufferClass::kBoundary));
  for (int i = 0; i < std::min(kLoads, stored); ++i) boundaries.loads.push_back(emitter.add_device_buffer(cat("boundary load ", i), emitter.boundary_bytes(), BufferClass::kBoundary));
  return boundaries;
}

void emit_forward(StepEmitter& emitter, const Boundaries& boundaries, int layers) {
  emitter.begin_step();
  emitter.emit_embedding(boundaries.ring[0]);
  for (int layer = 0; layer < layers; ++layer) {
    const RankBuffers& x = boundaries.ring[layer % kRing];
    if (layer < static_cast<int>(boundaries.host.size())) emitter.emit_store("boundary_out", layer, x, boundaries.host[layer], emitter.boundary_bytes());
    const Delivery ordinary = emitter.deliver(emitter.ordinary_unit(layer));
    const RankBuffers y = emitter.add_activation(cat("y layer ", layer), emitter.boundary_bytes());
    emitter.emit_mixer_forward(layer, ordinary, x, y);
    emitter.emit_feed_forward(layer, ordinary, y, boundaries.ring[(layer + 1) % kRing], {});
  }
}

}  // namespace

Offload::Offload(const HostServices& services) : services_(services) {}

void Offload::emit_training(StepEmitter& emitter) {
  const int layers = static_cast<int>(emitter.model().layers.size());
  const Boundaries boundaries = add_boundaries(emitter, layers, /*training=*/true);
  emit_forward(emitter, boundaries, layers);
  RankBuffers gradient = emitter.add_activation(cat("gradient of layer ", layers), emitter.boundary_bytes());
  emitter.emit_head(boundaries.ring[layers % kRing], gradient);
  for (int layer = layers - 1; layer >= 0; --layer) {
    const bool stored = layer < static_cast<int>(boundaries.host.size());
    const RankBuffers& x = stored ? boundaries.loads[layer % boundaries.loads.size()] : boundaries.ring[layer % kRing];
    if (stored) emitter.emit_load("boundary_in", layer, boundaries.host[layer], x, emitter.boundary_bytes());
    const UnitId unit = emitter.ordinary_unit(layer);
    const Delivery ordinary = emitter.deliver(unit);
    const GradientTarget target = emitter.gradient_target(unit);
    const RankBuffers y = emitter.add_activation(cat("replayed y layer ", layer), emitter.boundary_bytes());
    const RankBuffers mixer_saved = emitter.add_activation(cat("mixer saved layer ", layer), emitter.mixer_saved_bytes(layer));
    const RankBuffers front_saved = emitter.add_activation(cat("feed-forward saved layer ", layer), emitter.feed_forward_saved_bytes(layer));
    emitter.emit_mixer_replay(layer, ordinary, x, y, mixer_saved);
    emitter.emit_feed_forward(layer, ordinary, y, {}, front_saved);
    const RankBuffers middle = emitter.add_activation(cat("gradient of y layer ", layer), emitter.boundary_bytes());
    emitter.emit_feed_forward_backward(layer, ordinary, target, y, front_saved, gradient, middle);
    const RankBuffers below = emitter.add_activation(cat("gradient of layer ", layer), emitter.boundary_bytes());
    emitter.emit_mixer_backward(layer, ordinary, target, x, mixer_saved, middle, below);
    emitter.retire(unit);
    gradient = below;
  }
  emitter.emit_embedding_backward(gradient);
  emitter.end_step();
}

void Offload::emit_evaluation(StepEmitter& emitter) {
  const int layers = static_cast<int>(emitter.model().layers.size());
  const Boundaries boundaries = add_boundaries(emitter, layers, /*training=*/false);
  emit_forward(emitter, boundaries, layers);
  emitter.emit_head(boundaries.ring[layers % kRing], {});
  emitter.end_step();
}

}  // namespace oom::offload
