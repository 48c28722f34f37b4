#include "whole_bank.h"

#include <oom/ops/moe.h>

#include <utility>

namespace whole_bank {
namespace {

// What the replay leaves for the backward, in SlotValue::saved.
enum Saved { kZ, kCounts, kEnds, kTokenOf, kRowOf };

oom::ops::ExpertWeights weights_of(const oom::StepEmitter& emitter, const oom::Delivery& bank, int rank) {
  const oom::LayerWeights tensors = emitter.weights(bank, rank);
  return {tensors[0], tensors[1], emitter.model().routed.activation == "gelu_tanh" ? oom::ops::GatedActivation::kGeluTanh : oom::ops::GatedActivation::kSilu};
}

// What the planner believes of a stage: two operations a weight and row in each of `products` passes over the bank's matrices. `oom calibrate` fits the rest.
oom::Cost cost_of(const oom::StepEmitter& emitter, int products) {
  const oom::RoutedExperts& routed = emitter.model().routed;
  const double rows = static_cast<double>(emitter.plan().tokens_per_rank() * routed.top_k), hidden = static_cast<double>(emitter.model().hidden), width = static_cast<double>(routed.width);
  const double element = static_cast<double>(oom::element_bytes(emitter.plan().workload.compute)), bank = static_cast<double>(routed.experts) * 3 * width * hidden;
  return {.gemm_flops = 2 * products * rows * hidden * 3 * width,
          .hbm_bytes = products * element * (rows * 6 * (hidden + width) + bank),
          .tokens = static_cast<double>(emitter.plan().tokens_per_rank()),
          .parameters = bank,
          .workspace_bytes = static_cast<int64_t>(element * (rows * (2 * hidden + 2 * width) + (products > 1 ? bank : 0)))};
}

}  // namespace

// Called while planning. A strategy with choices to make writes them into the plan, under its own name, where people can read and change them.
void WholeBank::configure(const oom::ModelDescription&, oom::Plan&) const {}

void WholeBank::add_units(oom::StepEmitter& emitter) {
  const oom::ModelDescription& model = emitter.model();
  std::vector<std::vector<int>> experts(model.layers.size());
  for (size_t p = 0; p < model.parameters.size(); ++p) {
    if (model.parameters[p].role == oom::ParameterRole::kExpert) experts.at(static_cast<size_t>(model.parameters[p].layer)).push_back(static_cast<int>(p));
  }
  banks_.assign(model.layers.size(), -1);
  for (size_t layer = 0; layer < experts.size(); ++layer) {
    if (experts[layer].empty()) continue;
    banks_[layer] = emitter.add_unit(
        oom::make_shared_unit(model, oom::cat("layer ", layer, " bank"), oom::UnitKind::kBank, static_cast<int>(layer), experts[layer], emitter.ranks()));
  }
}

// Emits, for all ranks at once, one stage each. The stage names every buffer that its action touches: edges, memory and prediction come out of that.
void WholeBank::emit_forward(oom::StepEmitter& emitter, int layer, const oom::ExpertBuffers& buffers) {
  const oom::Delivery bank = emitter.deliver(banks_.at(static_cast<size_t>(layer)));
  const bool save = !buffers.saved.empty(), sum = !buffers.routed.empty();
  for (int rank = 0; rank < emitter.ranks(); ++rank) {
    oom::StageSpec stage{.kind = save ? "experts_replay" : "experts_forward", .layer = layer, .lane = {oom::Lane::kCompute, rank}, .reads = bank.reads[rank], .cost = cost_of(emitter, 1)};
    stage.reads.insert(stage.reads.end(), {buffers.front[rank], buffers.routing[rank]});
    if (save) stage.writes.push_back(buffers.saved[rank]);
    if (sum) stage.writes.push_back(buffers.routed[rank]);
    // Runs in every step, on the rank's compute lane; it reaches its data through the memory's slots and nothing else.
    stage.action = [&emitter, bank, rank, save, sum, front = buffers.front[rank], routing = buffers.routing[rank], saved = save ? buffers.saved[rank] : oom::kNone,
                    routed = sum ? buffers.routed[rank] : oom::kNone](oom::StageContext&) {
      oom::StepMemory& memory = emitter.memory();
      oom::ops::MoeForward result = oom::ops::moe_forward(memory.slot(front).front.expert_input, memory.slot(routing).routing, weights_of(emitter, bank, rank), /*save_z=*/save);
      if (sum) memory.slot(routed).tensor = std::move(result.y);
      const oom::ops::Permutation& order = result.permutation;
      if (save) memory.slot(saved).saved.tensors = {std::move(result.z), order.counts, order.ends, order.token_of, order.row_of};
    };
    emitter.program().emit(std::move(stage));
  }
}

void WholeBank::emit_backward(oom::StepEmitter& emitter, int layer, const oom::ExpertBuffers& buffers, const oom::ExpertGradientBuffers& gradients) {
  const oom::UnitId unit = banks_.at(static_cast<size_t>(layer));
  const oom::Delivery bank = emitter.deliver(unit);
  const oom::GradientTarget target = emitter.gradient_target(unit);
  for (int rank = 0; rank < emitter.ranks(); ++rank) {
    oom::StageSpec stage{.kind = "experts_backward", .layer = layer, .lane = {oom::Lane::kCompute, rank}, .reads = bank.reads[rank], .writes = target.writes[rank], .cost = cost_of(emitter, 2)};
    stage.reads.insert(stage.reads.end(), {buffers.front[rank], buffers.routing[rank], buffers.saved[rank], gradients.drouted[rank]});
    stage.writes.insert(stage.writes.end(), {gradients.dinput[rank], gradients.dweights[rank]});
    stage.action = [&emitter, bank, target, rank, front = buffers.front[rank], routing = buffers.routing[rank], saved = buffers.saved[rank], drouted = gradients.drouted[rank],
                    dinput = gradients.dinput[rank], dweights = gradients.dweights[rank]](oom::StageContext&) {
      oom::StepMemory& memory = emitter.memory();
      const std::vector<at::Tensor> held = std::move(memory.slot(saved).saved.tensors);
      const oom::LayerGradients sinks = emitter.gradients(target, rank, /*accumulate=*/false);
      oom::ops::MoeBackward result =
          oom::ops::moe_backward(memory.slot(drouted).tensor, memory.slot(front).front.expert_input, memory.slot(routing).routing,
                                 {held[kCounts], held[kEnds], held[kTokenOf], held[kRowOf]}, held[kZ], weights_of(emitter, bank, rank), {.gate_up = sinks[0], .down = sinks[1]});
      memory.slot(dinput).tensor = std::move(result.dx);
      memory.slot(dweights).tensor = std::move(result.d_weights);
    };
    emitter.program().emit(std::move(stage));
  }
  emitter.retire(unit);
}

}  // namespace whole_bank
