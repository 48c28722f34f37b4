// The halves of a decoder layer as stages of the compute lane: one a rank and half, the experts' own left to their strategy.
#include <ATen/ops/zeros.h>

#include "runtime/program_emitter.h"
#include "runtime/sublayer_price.h"

namespace oom::runtime {
namespace {

std::vector<BufferId> operator+(std::vector<BufferId> left, const std::vector<BufferId>& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

}  // namespace

void ProgramEmitter::emit_mixer_forward(int layer, const Delivery& ordinary, const RankBuffers& x, const RankBuffers& y) {
  const Mixer& mixer = *context_.operators.mixers.at(layer);
  for (int rank = 0; rank < ranks(); ++rank) {
    builder_.emit({.kind = "mixer_forward", .layer = layer, .lane = {Lane::kCompute, rank}, .reads = ordinary.reads[rank] + std::vector{x[rank]} + sequence_buffers(rank),
                   .writes = {y[rank]}, .cost = mixer_price(mixer, Pass::kForward, plan()),
                   .action = [this, &mixer, layer, ordinary, rank, in = x[rank], out = y[rank]](StageContext&) {
                     const LayerWeights weights = layer_weights(ordinary, layer, rank);
                     const SequenceInfo info = sequence(rank);
                     put(out, mixer.forward(activation(in), {.weights = weights, .sequence = info}, nullptr));
                   }});
  }
}

void ProgramEmitter::emit_mixer_replay(int layer, const Delivery& ordinary, const RankBuffers& x, const RankBuffers& y, const RankBuffers& saved) {
  const Mixer& mixer = *context_.operators.mixers.at(layer);
  for (int rank = 0; rank < ranks(); ++rank) {
    builder_.emit({.kind = "mixer_replay", .layer = layer, .lane = {Lane::kCompute, rank}, .reads = ordinary.reads[rank] + std::vector{x[rank]} + sequence_buffers(rank),
                   .writes = {y[rank], saved[rank]}, .cost = mixer_price(mixer, Pass::kReplay, plan()),
                   .action = [this, &mixer, layer, ordinary, rank, in = x[rank], out = y[rank], aside = saved[rank]](StageContext&) {
                     const LayerWeights weights = layer_weights(ordinary, layer, rank);
                     const SequenceInfo info = sequence(rank);
                     put(out, mixer.replay(activation(in), {.weights = weights, .sequence = info}, nullptr, context_.memory.slot(aside).saved));
                   }});
  }
}

void ProgramEmitter::emit_mixer_backward(int layer, const Delivery& ordinary, const GradientTarget& gradient, const RankBuffers& x, const RankBuffers& saved,
                                         const RankBuffers& dy, const RankBuffers& dx) {
  const Mixer& mixer = *context_.operators.mixers.at(layer);
  for (int rank = 0; rank < ranks(); ++rank) {
    // The feed-forward's backward wrote its part of the ordinary gradients before: this one adds the rest.
    StageSpec spec{.kind = "mixer_backward", .layer = layer, .lane = {Lane::kCompute, rank},
                   .reads = ordinary.reads[rank] + std::vector{x[rank], saved[rank]} + sequence_buffers(rank), .updates = gradient.writes[rank],
                   .cost = mixer_price(mixer, Pass::kBackward, plan())};
    if (dx[rank] == dy[rank]) {
      spec.updates.push_back(dx[rank]);
    } else {
      spec.reads.push_back(dy[rank]);
      spec.writes.push_back(dx[rank]);
    }
    spec.action = [this, &mixer, layer, ordinary, gradient, rank, in = x[rank], aside = saved[rank], upper = dy[rank], lower = dx[rank]](StageContext&) {
      const LayerWeights weights = layer_weights(ordinary, layer, rank);
      LayerGradients sinks = layer_gradients(gradient, layer, rank);
      const SequenceInfo info = sequence(rank);
      put(lower, mixer.backward(activation(upper), activation(in), context_.memory.slot(aside).saved, {.weights = weights, .gradients = &sinks, .sequence = info}));
    };
    builder_.emit(std::move(spec));
  }
}

void ProgramEmitter::emit_feed_forward(int layer, const Delivery& ordinary, const RankBuffers& y, const RankBuffers& z, const RankBuffers& saved) {
  const FeedForward& feed_forward = *context_.operators.feed_forwards.at(layer);
  const bool replay = !saved.empty();
  const bool routed = feed_forward.routed();
  const int64_t tokens = plan().tokens_per_rank();
  const Pass pass = replay ? Pass::kReplay : Pass::kForward;
  const std::string suffix = replay ? " replay" : "";
  const RankBuffers front = add_activation(cat("front", suffix, " layer ", layer), 2 * boundary_bytes(), BufferClass::kWorkspace);
  if (!replay && routed) routings_[layer] = add_activation(cat("routing layer ", layer), tokens * model().routed.top_k * 8, BufferClass::kResult);
  const RankBuffers routing = routed ? routings_.at(layer) : RankBuffers{};
  const bool counts = !replay && routed && !statistics_.empty();

  for (int rank = 0; rank < ranks(); ++rank) {
    StageSpec spec{.kind = replay ? "router_replay" : "router_forward", .layer = layer, .lane = {Lane::kCompute, rank}, .reads = ordinary.reads[rank] + std::vector{y[rank]},
                   .writes = {front[rank]}, .cost = feed_forward_price(feed_forward, pass, plan())};
    if (replay) spec.writes.push_back(saved[rank]);
    if (routed) (replay ? spec.reads : spec.writes).push_back(routing[rank]);
    if (counts) spec.updates.push_back(statistics_[rank]);
    spec.action = [this, &feed_forward, layer, ordinary, rank, replay, routed, counts, in = y[rank], out = front[rank], decided = routed ? routing[rank] : kNone,
                   aside = replay ? saved[rank] : kNone](StageContext&) {
      const LayerWeights weights = layer_weights(ordinary, layer, rank);
      FeedForwardCall call{.weights = weights};
      if (counts) call.statistics = statistics(rank);
      Routing none;
      Routing& decisions = routed ? context_.memory.slot(decided).routing : none;
      context_.memory.slot(out).front = feed_forward.front(activation(in), call, decisions, replay ? &context_.memory.slot(aside).saved : nullptr);
    };
    builder_.emit(std::move(spec));
  }

  const bool wants_routed = !replay || feed_forward.replays_back();
  ExpertBuffers buffers{.front = front, .routing = routing};
  if (routed) {
    if (wants_routed) buffers.routed = add_activation(cat("routed", suffix, " layer ", layer), boundary_bytes(), BufferClass::kWorkspace);
    if (replay) buffers.saved = expert_saved_[layer] = add_activation(cat("experts saved layer ", layer), expert_saved_bytes(), BufferClass::kWorkspace);
    context_.experts.emit_forward(*this, layer, buffers);
  }
  fronts_[layer] = front;
  if (!wants_routed || (replay && !routed)) return;

  for (int rank = 0; rank < ranks(); ++rank) {
    StageSpec spec{.kind = replay ? "combine_replay" : "combine_forward", .layer = layer, .lane = {Lane::kCompute, rank}, .reads = ordinary.reads[rank] + std::vector{y[rank], front[rank]},
                   .cost = row_price(4, plan(), model().hidden)};
    if (routed) spec.reads.push_back(buffers.routed[rank]);
    if (replay) spec.updates.push_back(saved[rank]);
    if (!z.empty()) spec.writes.push_back(z[rank]);
    spec.action = [this, &feed_forward, layer, ordinary, rank, in = y[rank], from = front[rank], sum = routed ? buffers.routed[rank] : kNone, out = z.empty() ? kNone : z[rank],
                   aside = replay ? saved[rank] : kNone](StageContext&) {
      const LayerWeights weights = layer_weights(ordinary, layer, rank);
      const at::Tensor none;
      at::Tensor result = feed_forward.back(activation(in), sum == kNone ? none : context_.memory.slot(sum).tensor, context_.memory.slot(from).front, {.weights = weights},
                                            aside == kNone ? nullptr : &context_.memory.slot(aside).saved);
      if (out != kNone) put(out, std::move(result));
    };
    builder_.emit(std::move(spec));
  }
}

void ProgramEmitter::emit_feed_forward_backward(int layer, const Delivery& ordinary, const GradientTarget& gradient, const RankBuffers& y, const RankBuffers& saved,
                                                const RankBuffers& dz, const RankBuffers& dy) {
  const FeedForward& feed_forward = *context_.operators.feed_forwards.at(layer);
  const bool routed = feed_forward.routed();
  const RankBuffers side = add_activation(cat("gradient of side and stream layer ", layer), 2 * boundary_bytes(), BufferClass::kWorkspace);
  ExpertGradientBuffers experts;
  if (routed) {
    experts.drouted = add_activation(cat("gradient of routed layer ", layer), boundary_bytes(), BufferClass::kWorkspace);
    experts.dinput = add_activation(cat("gradient of expert input layer ", layer), boundary_bytes(), BufferClass::kWorkspace);
    experts.dweights = add_activation(cat("gradient of routing layer ", layer), plan().tokens_per_rank() * model().routed.top_k * 4, BufferClass::kWorkspace);
  }
  for (int rank = 0; rank < ranks(); ++rank) {
    StageSpec spec{.kind = "combine_backward", .layer = layer, .lane = {Lane::kCompute, rank}, .reads = ordinary.reads[rank] + std::vector{dz[rank]}, .writes = gradient.writes[rank] + std::vector{side[rank]},
                   .updates = {saved[rank]}, .cost = row_price(2, plan(), model().hidden)};
    if (routed) spec.writes.push_back(experts.drouted[rank]);
    spec.action = [this, &feed_forward, layer, ordinary, gradient, rank, upper = dz[rank], aside = saved[rank], beside = side[rank],
                   to_experts = routed ? experts.drouted[rank] : kNone](StageContext&) {
      const LayerWeights weights = layer_weights(ordinary, layer, rank);
      LayerGradients sinks = layer_gradients(gradient, layer, rank);
      SlotValue& hold = context_.memory.slot(beside);
      at::Tensor dside, dstream;
      at::Tensor drouted = feed_forward.back_backward(activation(upper), context_.memory.slot(aside).saved, {.weights = weights, .gradients = &sinks}, dside, dstream);
      hold.saved.tensors = {std::move(dside), std::move(dstream)};
      if (to_experts != kNone) context_.memory.slot(to_experts).tensor = std::move(drouted);
    };
    builder_.emit(std::move(spec));
  }
  if (routed) {
    context_.experts.emit_backward(*this, layer, {.front = fronts_.at(layer), .routing = routings_.at(layer), .saved = expert_saved_.at(layer)}, experts);
  }
  for (int rank = 0; rank < ranks(); ++rank) {
    StageSpec spec{.kind = "router_backward", .layer = layer, .lane = {Lane::kCompute, rank}, .reads = ordinary.reads[rank] + std::vector{y[rank], saved[rank], side[rank]},
                   .writes = {dy[rank]}, .updates = gradient.writes[rank], .cost = feed_forward_price(feed_forward, Pass::kBackward, plan())};
    if (routed) spec.reads = spec.reads + std::vector{routings_.at(layer)[rank], experts.dinput[rank], experts.dweights[rank]};
    if (routed && !coefficients_.empty()) spec.reads.push_back(coefficients_[rank]);
    spec.action = [this, &feed_forward, layer, ordinary, gradient, rank, routed, in = y[rank], aside = saved[rank], beside = side[rank], lower = dy[rank],
                   decided = routed ? routings_.at(layer)[rank] : kNone, dinput = routed ? experts.dinput[rank] : kNone,
                   dweights = routed ? experts.dweights[rank] : kNone](StageContext&) {
      const LayerWeights weights = layer_weights(ordinary, layer, rank);
      LayerGradients sinks = layer_gradients(gradient, layer, rank);
      FeedForwardCall call{.weights = weights, .gradients = &sinks};
      if (routed && !coefficients_.empty()) call.probability_gradient = context_.memory.view(coefficients_[rank], at::kFloat, {model().routed.experts});
      SlotValue& held = context_.memory.slot(beside);
      const at::Tensor none;
      const Routing nowhere;
      put(lower, feed_forward.front_backward(routed ? context_.memory.slot(dinput).tensor : none, routed ? context_.memory.slot(dweights).tensor : none, held.saved.tensors[0],
                                             held.saved.tensors[1], activation(in), routed ? context_.memory.slot(decided).routing : nowhere, context_.memory.slot(aside).saved, call));
    };
    builder_.emit(std::move(spec));
  }
}

}  // namespace oom::runtime
