#include "ep.h"

#include "owned_unit.h"

namespace oom::ep {

Ep::Ep(const HostServices& services) : services_(services) {}

const SettingsSchema& Ep::settings_schema() { return ep_schema(); }

void Ep::configure(const ModelDescription& model, Plan& plan) const { configure_ep(services_.settings, model, plan); }

void Ep::add_units(StepEmitter& emitter) {
  const ModelDescription& model = emitter.model();
  exchange_.reset();
  forwarded_.clear();
  orders_.clear();
  kept_.clear();
  shards_.assign(model.layers.size(), {});
  if (model.routed.experts == 0) return;
  exchange_ = std::make_shared<Exchange>(emitter, exchange_shape(model, emitter.plan()));
  for (int layer = 0; layer < static_cast<int>(model.layers.size()); ++layer) {
    if (!model.layers[layer].routed()) continue;
    for (int owner = 0; owner < emitter.ranks(); ++owner) {
      ParameterUnit unit = make_owned_unit(model, layer, owner, emitter.ranks());
      unit.sums_slices = exchange_->visits() > 1;
      shards_[layer].push_back(emitter.add_unit(std::move(unit)));
    }
  }
}

void Ep::emit_forward(StepEmitter& emitter, int layer, const ExpertBuffers& buffers) {
  std::vector<Delivery> shards;
  for (const UnitId unit : shards_.at(layer)) shards.push_back(emitter.deliver(unit));
  const bool first = forwarded_.insert(layer).second;
  const bool retain = first && !buffers.saved.empty();
  Pass pass{.layer = layer, .shards = shards, .order = exchange_->emit_order(layer, buffers.routing, /*counts=*/first, retain), .front = buffers.front, .routing = buffers.routing, .kept = {}};
  if (first) exchange_->emit_counts(layer);
  // Without retaining, backward brings the tokens again, round by round, and makes Z from them there: what it needs is bounded by a round, however skewed
  // the routing.
  if (retain) kept_[layer] = pass.kept = exchange_->add_kept(layer);
  if (!buffers.saved.empty()) orders_[layer] = pass.order;
  if (!buffers.routed.empty()) exchange_->emit_forward(pass, buffers.routed);
}

void Ep::emit_backward(StepEmitter& emitter, int layer, const ExpertBuffers& buffers, const ExpertGradientBuffers& gradients) {
  std::vector<Delivery> shards;
  std::vector<GradientTarget> targets;
  for (const UnitId unit : shards_.at(layer)) {
    shards.push_back(emitter.deliver(unit));
    targets.push_back(emitter.gradient_target(unit));
  }
  exchange_->emit_backward({.layer = layer, .shards = shards, .order = orders_.at(layer), .front = buffers.front, .routing = buffers.routing, .kept = kept_[layer]}, gradients, targets);
  for (const UnitId unit : shards_.at(layer)) emitter.retire(unit);
}

}  // namespace oom::ep
