#include "on_device.h"

#include <string>
#include <vector>

namespace on_device {
namespace {

using oom::Activation;
using oom::Pass;

// A buffer for each layer's input and one for the last layer's result, on every rank's GPU. They have names: the programs of a plan share what is called alike.
std::vector<Activation> add_boundaries(oom::StepEmitter& emitter) {
  std::vector<Activation> boundaries;
  for (size_t layer = 0; layer <= emitter.model().layers.size(); ++layer) {
    boundaries.push_back(emitter.all_tokens(emitter.add_device_buffer(oom::cat("input of layer ", layer), emitter.boundary_bytes(), oom::BufferClass::kBoundary)));
  }
  return boundaries;
}

// Slots exist from their writer to their last reader within a step.
Activation add_slot(oom::StepEmitter& emitter, const char* what, int layer) { return emitter.add_rows(oom::cat(what, " layer ", layer), 0, emitter.plan().tokens_per_rank()); }

// This strategy cuts nothing: every call is about all sequences, and all tokens, of a rank.
oom::MixerPart all_sequences(const oom::StepEmitter& emitter) { return {.first_sequence = 0, .sequences = emitter.plan().sequences_per_rank(), .slice = {}, .index = 0}; }
oom::TokenPart all_tokens(const oom::StepEmitter& emitter) { return {.begin = 0, .tokens = emitter.plan().tokens_per_rank()}; }

void emit_forward(oom::StepEmitter& emitter, const std::vector<Activation>& boundaries) {
  emitter.begin_step();
  emitter.emit_embedding(boundaries[0].buffers);
  for (int layer = 0; layer + 1 < static_cast<int>(boundaries.size()); ++layer) {
    const oom::Delivery weights = emitter.deliver(emitter.ordinary_unit(layer));
    const Activation middle = add_slot(emitter, "middle of", layer);
    emitter.emit_mixer_forward(layer, weights, all_sequences(emitter), Pass::kForward, boundaries[layer], middle, /*results=*/{}, /*before=*/{}, /*after=*/{});
    emitter.emit_feed_forward(layer, weights, all_tokens(emitter), Pass::kForward, middle, &boundaries[layer + 1], /*save=*/false);
  }
}

}  // namespace

void OnDevice::configure(const oom::ModelDescription&, oom::Plan&) const {}

void OnDevice::emit_training(oom::StepEmitter& emitter) {
  const int layers = static_cast<int>(emitter.model().layers.size());
  const std::vector<Activation> boundaries = add_boundaries(emitter);
  emit_forward(emitter, boundaries);
  Activation gradient = add_slot(emitter, "gradient of", layers);
  emitter.emit_head(boundaries[layers].buffers, gradient.buffers);
  for (int layer = layers - 1; layer >= 0; --layer) {
    const oom::UnitId unit = emitter.ordinary_unit(layer);
    const oom::Delivery weights = emitter.deliver(unit);
    const oom::GradientTarget target = emitter.gradient_target(unit);
    // Replay makes what the backward reads; the routing is the forward's, and nobody reads the layer's result again.
    const Activation middle = add_slot(emitter, "replayed middle of", layer);
    const oom::RankBuffers mixer_saved = emitter.emit_mixer_replay(layer, weights, all_sequences(emitter), Pass::kReplay, boundaries[layer], middle, /*results=*/{});
    const oom::FeedForwardRecord record = emitter.emit_feed_forward(layer, weights, all_tokens(emitter), Pass::kReplay, middle, nullptr, /*save=*/true);
    const Activation dmiddle = add_slot(emitter, "gradient of the middle of", layer);
    emitter.emit_feed_forward_backward(layer, weights, target, all_tokens(emitter), record, middle, gradient, dmiddle);
    gradient = add_slot(emitter, "gradient of", layer);
    emitter.emit_mixer_backward(layer, weights, target, all_sequences(emitter), boundaries[layer], mixer_saved, /*results=*/{}, dmiddle, gradient);
    emitter.retire(unit);
  }
  emitter.emit_embedding_backward(gradient.buffers);
  emitter.end_step();
}

void OnDevice::emit_evaluation(oom::StepEmitter& emitter) {
  const std::vector<Activation> boundaries = add_boundaries(emitter);
  emit_forward(emitter, boundaries);
  emitter.emit_head(boundaries.back().buffers, {});
  emitter.end_step();
}

}  // namespace on_device
