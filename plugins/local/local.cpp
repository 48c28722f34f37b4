#include "local.h"

#include <oom/ops/moe.h>

#include <algorithm>

namespace oom::local {
namespace {

std::vector<BufferId> joined(std::vector<BufferId> left, const std::vector<BufferId>& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

// What replay leaves for backward, in SlotValue::saved.
enum Saved { kZ, kCounts, kEnds, kTokenOf, kRowOf };

enum class ExpertPass { kForward, kReplay, kBackward };

// Rows of H elements and I elements are read and written about as often as counted here; weights and their gradients once. `saves`: the forward's Z is
// counted among what it saves.
Cost price(const StepEmitter& emitter, ExpertPass pass, int64_t tokens, bool saves) {
  const RoutedExperts& routed = emitter.model().routed;
  const double rows = static_cast<double>(tokens * routed.top_k);
  const double hidden = static_cast<double>(emitter.model().hidden), width = static_cast<double>(routed.width);
  const double element = static_cast<double>(element_bytes(emitter.plan().workload.compute));
  const double bank = static_cast<double>(routed.experts) * 3 * width * hidden;
  const ops::ExpertsProblem problem{.device = emitter.plan().device == DeviceKind::kCuda ? c10::DeviceType::CUDA : c10::DeviceType::CPU, .dtype = emitter.compute_type(),
                                    .rows = tokens * routed.top_k, .experts = routed.experts, .hidden = emitter.model().hidden, .width = routed.width};
  // One [rows, H]; and the tokens' sums, which are made when the experts are done.
  const auto x = static_cast<int64_t>(element * rows * hidden), sums = static_cast<int64_t>(element * hidden) * tokens;
  Cost cost{.tokens = static_cast<double>(tokens), .parameters = bank};
  switch (pass) {
    case ExpertPass::kForward:
      cost.gemm_flops = 2 * rows * hidden * 3 * width;
      cost.hbm_bytes = element * (rows * (6 * hidden + 6 * width) + bank);
      cost.workspace_bytes = std::max(x + x + ops::experts_forward_workspace_bytes(problem, saves) - sums, x) + 8 * (problem.rows + problem.experts);
      break;
    case ExpertPass::kReplay:
      cost.gemm_flops = 2 * rows * hidden * 2 * width;
      cost.hbm_bytes = element * (rows * (3 * hidden + 2 * width) + bank);
      cost.workspace_bytes = x;
      break;
    case ExpertPass::kBackward:
      cost.gemm_flops = 4 * rows * hidden * 3 * width;
      cost.hbm_bytes = element * (rows * (10 * hidden + 16 * width) + 2 * bank);
      cost.workspace_bytes = std::max(3 * x + ops::experts_backward_workspace_bytes(problem) - sums, 3 * x) + 8 * (problem.rows + problem.experts);
      break;
  }
  return cost;
}

ops::ExpertWeights expert_weights(const StepEmitter& emitter, const Delivery& bank, int rank) {
  const LayerWeights tensors = emitter.weights(bank, rank);
  return {tensors[0], tensors[1], emitter.model().routed.activation == "gelu_tanh" ? ops::GatedActivation::kGeluTanh : ops::GatedActivation::kSilu};
}

}  // namespace

Local::Local(const HostServices& services) : services_(services) {}

const SettingsSchema& Local::settings_schema() {
  static const SettingsSchema schema{.table = "local",
                                     .doc = "Experts: the whole bank is streamed to every GPU.",
                                     .settings = {{.key = "delivery",
                                                   .words = {"auto", "full", "shard"},
                                                   .fallback = std::string("auto"),
                                                   .doc = "How a bank reaches the GPUs: full, a copy each from the host; shard, disjoint slices that are then handed on from GPU to GPU."}}};
  return schema;
}

void Local::configure(const ModelDescription&, Plan& plan) const {
  const std::string wanted = services_.settings ? services_.settings->get_text("delivery") : "auto";
  plan.transfer.shard_delivery_bank = wanted != "full";
  plan.settings["local"] = {{"delivery", plan.transfer.shard_delivery_bank ? "\"shard\"" : "\"full\""}};
}

void Local::check(const ModelDescription&, Plan& plan) const {
  plan.transfer.shard_delivery_bank = !parse_settings(settings_schema(), plan.settings_of("local"), "settings.local").is_word("delivery", "full");
}

void Local::add_units(StepEmitter& emitter) {
  const ModelDescription& model = emitter.model();
  banks_.assign(model.layers.size(), -1);
  std::vector<std::vector<int>> experts(model.layers.size());
  for (int p = 0; p < static_cast<int>(model.parameters.size()); ++p) {
    if (model.parameters[p].role == ParameterRole::kExpert) experts.at(model.parameters[p].layer).push_back(p);
  }
  for (int layer = 0; layer < static_cast<int>(model.layers.size()); ++layer) {
    if (experts[layer].empty()) continue;
    OOM_CHECK_EQ(experts[layer].size(), 2u, "layer ", layer, " must list gate_up and down");
    ParameterUnit bank = make_shared_unit(model, cat("layer ", layer, " bank"), UnitKind::kBank, layer, experts[layer], emitter.ranks());
    bank.sums_slices = emitter.feed_forward_tokens() < emitter.plan().tokens_per_rank();
    banks_[layer] = emitter.add_unit(std::move(bank));
  }
}

void Local::emit_forward(StepEmitter& emitter, int layer, const ExpertBuffers& buffers) {
  const Delivery bank = emitter.deliver(banks_.at(layer));
  const bool save = !buffers.saved.empty(), sum = !buffers.routed.empty();
  const int64_t experts = emitter.model().routed.experts;
  for (int rank = 0; rank < emitter.ranks(); ++rank) {
    StageSpec spec{.kind = save && !sum ? "experts_replay" : "experts_forward",
                   .layer = layer,
                   .part = buffers.part.index,
                   .lane = {Lane::kCompute, rank},
                   .reads = joined({buffers.front[rank], buffers.routing[rank]}, bank.reads[rank]),
                   .cost = price(emitter, save && !sum ? ExpertPass::kReplay : ExpertPass::kForward, buffers.part.tokens, save)};
    if (save) spec.writes.push_back(buffers.saved[rank]);
    if (sum) spec.writes.push_back(buffers.routed[rank]);
    spec.action = [&emitter, &memory = emitter.memory(), bank, rank, experts, save, sum, front = buffers.front[rank], routing = buffers.routing[rank],
                   saved = save ? buffers.saved[rank] : kNone, routed = sum ? buffers.routed[rank] : kNone](StageContext&) {
      const Routing& decisions = memory.slot(routing).routing;
      const at::Tensor& x = memory.slot(front).front.expert_input;
      const ops::ExpertWeights weights = expert_weights(emitter, bank, rank);
      at::Tensor z;
      ops::Permutation order;
      if (sum) {
        ops::MoeForward result = ops::moe_forward(x, decisions, weights, save);
        memory.slot(routed).tensor = std::move(result.y);
        z = std::move(result.z);
        order = std::move(result.permutation);
      } else {
        order = ops::make_permutation(decisions.indices, experts);
        z = ops::experts_gate_up(ops::gather_rows(x, order.token_of), order.ends, weights);
      }
      if (save) memory.slot(saved).saved.tensors = {z, order.counts, order.ends, order.token_of, order.row_of};
    };
    emitter.program().emit(std::move(spec));
  }
}

void Local::emit_backward(StepEmitter& emitter, int layer, const ExpertBuffers& buffers, const ExpertGradientBuffers& gradients) {
  const UnitId unit = banks_.at(layer);
  const Delivery bank = emitter.deliver(unit);
  const bool first = buffers.part.first;
  if (first) target_ = emitter.gradient_target(unit);
  for (int rank = 0; rank < emitter.ranks(); ++rank) {
    emitter.program().emit(
        {.kind = "experts_backward",
         .layer = layer,
         .part = buffers.part.index,
         .lane = {Lane::kCompute, rank},
         .reads = joined({buffers.front[rank], buffers.routing[rank], buffers.saved[rank], gradients.drouted[rank]}, bank.reads[rank]),
         .writes = joined({gradients.dinput[rank], gradients.dweights[rank]}, first ? target_.writes[rank] : std::vector<BufferId>{}),
         .updates = first ? std::vector<BufferId>{} : target_.writes[rank],
         .cost = price(emitter, ExpertPass::kBackward, buffers.part.tokens, true),
         .action = [&emitter, &memory = emitter.memory(), bank, target = target_, first, rank, front = buffers.front[rank], routing = buffers.routing[rank], saved = buffers.saved[rank],
                    drouted = gradients.drouted[rank], dinput = gradients.dinput[rank], dweights = gradients.dweights[rank]](StageContext&) {
           const std::vector<at::Tensor> held = std::move(memory.slot(saved).saved.tensors);
           const ops::Permutation order{held[kCounts], held[kEnds], held[kTokenOf], held[kRowOf]};
           const LayerGradients sinks = emitter.gradients(target, rank, /*accumulate=*/!first);
           ops::MoeBackward result = ops::moe_backward(memory.slot(drouted).tensor, memory.slot(front).front.expert_input, memory.slot(routing).routing, order, held[kZ],
                                                       expert_weights(emitter, bank, rank), {.gate_up = sinks[0], .down = sinks[1]});
           memory.slot(dinput).tensor = std::move(result.dx);
           memory.slot(dweights).tensor = std::move(result.d_weights);
         }});
  }
  if (buffers.part.last) emitter.retire(unit);
}

}  // namespace oom::local
