// Feed-forwards as stages of the compute lane: one a rank for each step of a part, the experts' own left to their strategy.
#include "plugin/plugin_guard.h"
#include "runtime/program_emitter.h"
#include "runtime/sublayer_price.h"

namespace oom::runtime {
namespace {

std::vector<BufferId> operator+(std::vector<BufferId> left, const std::vector<BufferId>& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

}  // namespace

FeedForwardRecord ProgramEmitter::emit_feed_forward(int layer, const Delivery& ordinary, const TokenPart& part, Pass pass, const Activation& y, const Activation* z, bool save) {
  const FeedForward& feed_forward = *context_.operators.feed_forwards.at(layer);
  const bool forward = pass == Pass::kForward;
  const bool routed = feed_forward.routed();
  const std::string name = cat(forward ? "" : save ? " replay" : " again", " layer ", layer, " part ", part.index);
  const BufferClass buffer_class = forward && save ? BufferClass::kRetained : BufferClass::kWorkspace;
  const int64_t part_bytes = part.tokens * model().hidden * element_bytes(plan().workload.compute);
  FeedForwardRecord record;
  const HandedOn handed = feed_forward.hands_on();
  const int64_t input_bytes = routed && !(save && handed.saves_input) ? part_bytes : 0, side_bytes = handed.side && !(save && handed.saves_side) ? part_bytes : 0;
  // Until the backward there is no need of the side branch.
  const bool retains = forward && save;
  record.front = add_activation("front" + name, input_bytes + (retains ? 0 : side_bytes), buffer_class);
  const RankBuffers side = retains ? add_activation("side" + name, side_bytes, BufferClass::kWorkspace) : RankBuffers{};
  if (save && handed.saved_by_back > 0) record.saved_by_back = add_activation("saved behind experts" + name, handed.saved_by_back * part_bytes, buffer_class);
  if (save) record.saved = add_activation("feed-forward saved" + name, feed_forward.cost(Pass::kReplay, part.tokens, element_bytes(plan().workload.compute)).saved_bytes, buffer_class);
  if (routed) {
    RankBuffers& decided = routings_[{layer, part.begin}];
    if (forward) decided = add_activation("routing" + name, part.tokens * model().routed.top_k * 8, BufferClass::kResult);
    record.routing = decided;
  }
  const bool counts = forward && routed && !statistics_.empty();
  const bool loads = forward && routed && !expert_load_.empty();

  for (int rank = 0; rank < ranks(); ++rank) {
    const RowSpan in = span(y, rank, part.begin, part.tokens);
    StageSpec spec{.kind = forward ? "router_forward" : "router_replay", .layer = layer, .part = part.index, .lane = {Lane::kCompute, rank},
                   .reads = ordinary.reads[rank] + std::vector{in.buffer}, .writes = {record.front[rank]},
                   .cost = feed_forward_price(feed_forward, save ? Pass::kReplay : Pass::kForward, part.tokens, plan())};
    if (save) spec.writes.push_back(record.saved[rank]);
    if (retains) spec.writes.push_back(side[rank]);
    if (routed) (forward ? spec.writes : spec.reads).push_back(record.routing[rank]);
    if (counts) spec.updates.push_back(statistics_[rank]);
    if (loads) spec.updates.push_back(expert_load_[rank]);
    spec.action = [this, &feed_forward, layer, ordinary, rank, save, routed, counts, loads, in, out = record.front[rank], decided = routed ? record.routing[rank] : kNone,
                   aside = save ? record.saved[rank] : kNone, beside = retains ? side[rank] : kNone](StageContext& context) {
      const LayerWeights weights = layer_weights(ordinary, layer, rank);
      FeedForwardCall call{.weights = weights};
      if (counts) call.statistics = statistics(rank);
      Routing none;
      Routing& decisions = routed ? context_.memory.slot(decided).routing : none;
      FeedForwardFront& front = context_.memory.slot(out).front;
      front = feed_forward.front(rows(in), call, decisions, save ? &context_.memory.slot(aside).saved : nullptr);
      if (beside != kNone) context_.memory.slot(beside).tensor = std::move(front.side);
      if (loads) count_experts(layer, rank, decisions.indices, context.step);
    };
    builder_.emit(std::move(spec));
  }

  const bool wants_routed = z != nullptr || feed_forward.replays_back();
  ExpertBuffers buffers{.part = part, .front = record.front, .routing = record.routing};
  if (routed) {
    if (wants_routed) buffers.routed = add_activation("routed" + name, part_bytes, BufferClass::kWorkspace);
    if (save) buffers.saved = record.experts = add_activation("experts saved" + name, expert_saved_bytes(part.tokens), buffer_class);
    plugin::guarded(plan().experts, "emit_forward", plugin::kNoStep, [&] { context_.experts.emit_forward(*this, layer, buffers); });
  }
  if (!wants_routed) return record;

  for (int rank = 0; rank < ranks(); ++rank) {
    const RowSpan in = span(y, rank, part.begin, part.tokens);
    StageSpec spec{.kind = forward ? "combine_forward" : "combine_replay", .layer = layer, .part = part.index, .lane = {Lane::kCompute, rank},
                   .reads = ordinary.reads[rank] + std::vector{in.buffer, record.front[rank]}, .cost = row_price(4, part.tokens, plan(), model().hidden)};
    // The sum with the side branch, and a result that nobody reads.
    spec.cost.workspace_bytes = (handed.side ? part_bytes : 0) + (z ? 0 : part_bytes);
    if (routed) spec.reads.push_back(buffers.routed[rank]);
    if (save) spec.updates.push_back(record.saved[rank]);
    if (!record.saved_by_back.empty()) spec.writes.push_back(record.saved_by_back[rank]);
    if (retains) spec.reads.push_back(side[rank]);
    RowSpan out;
    if (z) {
      out = span(*z, rank, part.begin, part.tokens);
      declare_result(spec, out);
    }
    spec.action = [this, &feed_forward, layer, ordinary, rank, in, from = record.front[rank], sum = routed ? buffers.routed[rank] : kNone, out,
                   aside = save ? record.saved[rank] : kNone, beside = retains ? side[rank] : kNone](StageContext&) {
      const LayerWeights weights = layer_weights(ordinary, layer, rank);
      const at::Tensor none;
      FeedForwardFront front = context_.memory.slot(from).front;
      if (beside != kNone) front.side = context_.memory.slot(beside).tensor;
      at::Tensor result = feed_forward.back(rows(in), sum == kNone ? none : context_.memory.slot(sum).tensor, front, {.weights = weights},
                                            aside == kNone ? nullptr : &context_.memory.slot(aside).saved);
      if (out.buffer != kNone) put_rows(out, std::move(result));
    };
    builder_.emit(std::move(spec));
  }
  return record;
}

void ProgramEmitter::emit_feed_forward_backward(int layer, const Delivery& ordinary, const GradientTarget& gradient, const TokenPart& part, const FeedForwardRecord& record,
                                                const Activation& y, const Activation& dz, const Activation& dy) {
  const FeedForward& feed_forward = *context_.operators.feed_forwards.at(layer);
  const bool routed = feed_forward.routed();
  const std::string name = cat(" layer ", layer, " part ", part.index);
  const int64_t part_bytes = part.tokens * model().hidden * element_bytes(plan().workload.compute);
  const int64_t own_bytes = feed_forward.hands_on().passes_gradient ? 0 : part_bytes;
  const RankBuffers side = add_activation("gradient of side and stream" + name, 2 * own_bytes, BufferClass::kWorkspace);
  ExpertGradientBuffers experts;
  if (routed) {
    experts.drouted = add_activation("gradient of routed" + name, own_bytes, BufferClass::kWorkspace);
    experts.dinput = add_activation("gradient of expert input" + name, part_bytes, BufferClass::kWorkspace);
    experts.dweights = add_activation("gradient of routing" + name, part.tokens * model().routed.top_k * 4, BufferClass::kWorkspace);
  }
  for (int rank = 0; rank < ranks(); ++rank) {
    const RowSpan upper = span(dz, rank, part.begin, part.tokens);
    StageSpec spec{.kind = "combine_backward", .layer = layer, .part = part.index, .lane = {Lane::kCompute, rank}, .reads = ordinary.reads[rank] + std::vector{upper.buffer},
                   .writes = {side[rank]}, .updates = {record.saved[rank]}, .cost = row_price(2, part.tokens, plan(), model().hidden)};
    spec.cost.workspace_bytes = 0;
    if (!record.saved_by_back.empty()) spec.reads.push_back(record.saved_by_back[rank]);
    (gradient.accumulate ? spec.updates : spec.writes) = (gradient.accumulate ? spec.updates : spec.writes) + gradient.writes[rank];
    if (routed) spec.writes.push_back(experts.drouted[rank]);
    spec.action = [this, &feed_forward, layer, ordinary, gradient, rank, upper, aside = record.saved[rank], beside = side[rank],
                   to_experts = routed ? experts.drouted[rank] : kNone](StageContext&) {
      const LayerWeights weights = layer_weights(ordinary, layer, rank);
      LayerGradients sinks = layer_gradients(gradient, layer, rank);
      SlotValue& hold = context_.memory.slot(beside);
      at::Tensor dside, dstream;
      at::Tensor drouted = feed_forward.back_backward(rows(upper), context_.memory.slot(aside).saved, {.weights = weights, .gradients = &sinks}, dside, dstream);
      hold.saved.tensors = {std::move(dside), std::move(dstream)};
      if (to_experts != kNone) context_.memory.slot(to_experts).tensor = std::move(drouted);
    };
    builder_.emit(std::move(spec));
  }
  if (routed) {
    const ExpertBuffers buffers{.part = part, .front = record.front, .routing = record.routing, .routed = {}, .saved = record.experts};
    plugin::guarded(plan().experts, "emit_backward", plugin::kNoStep, [&] { context_.experts.emit_backward(*this, layer, buffers, experts); });
  }
  for (int rank = 0; rank < ranks(); ++rank) {
    const RowSpan in = span(y, rank, part.begin, part.tokens), lower = span(dy, rank, part.begin, part.tokens);
    StageSpec spec{.kind = "router_backward", .layer = layer, .part = part.index, .lane = {Lane::kCompute, rank},
                   .reads = ordinary.reads[rank] + std::vector{in.buffer, record.saved[rank], side[rank]}, .updates = gradient.writes[rank],
                   .cost = feed_forward_price(feed_forward, Pass::kBackward, part.tokens, plan())};
    if (routed) spec.reads = spec.reads + std::vector{record.routing[rank], experts.dinput[rank], experts.dweights[rank]};
    if (routed && !coefficients_.empty()) spec.reads.push_back(coefficients_[rank]);
    // Into the rows that this part's gradient came from, or into a buffer of its own. What was handed on as it came lives until here.
    if (lower.buffer == dz.buffers[rank] || own_bytes == 0) spec.reads.push_back(dz.buffers[rank]);
    declare_result(spec, lower);
    spec.action = [this, &feed_forward, layer, ordinary, gradient, rank, routed, in, aside = record.saved[rank], beside = side[rank], lower,
                   decided = routed ? record.routing[rank] : kNone, dinput = routed ? experts.dinput[rank] : kNone,
                   dweights = routed ? experts.dweights[rank] : kNone](StageContext&) {
      const LayerWeights weights = layer_weights(ordinary, layer, rank);
      LayerGradients sinks = layer_gradients(gradient, layer, rank);
      FeedForwardCall call{.weights = weights, .gradients = &sinks};
      if (routed && !coefficients_.empty()) call.probability_gradient = context_.memory.view(coefficients_[rank], at::kFloat, {model().routed.experts});
      SlotValue& held = context_.memory.slot(beside);
      const at::Tensor none;
      const Routing nowhere;
      put_rows(lower, feed_forward.front_backward(routed ? context_.memory.slot(dinput).tensor : none, routed ? context_.memory.slot(dweights).tensor : none, held.saved.tensors[0],
                                                  held.saved.tensors[1], rows(in), routed ? context_.memory.slot(decided).routing : nowhere, context_.memory.slot(aside).saved, call));
    };
    builder_.emit(std::move(spec));
  }
}

}  // namespace oom::runtime
