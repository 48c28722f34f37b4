#include "offload.h"

#include <algorithm>

#include "planner/alternatives.h"
#include "planner/proposals.h"
#include "policy.h"
#include "replay/transit.h"

namespace oom::offload {
namespace {

// From the embedding to the input of the head.
void emit_forward(StepEmitter& emitter, Boundaries& boundaries, Decoder& decoder, int layers) {
  emitter.begin_step();
  emitter.emit_embedding(boundaries.written(0).buffers);
  for (int layer = 0; layer < layers; ++layer) {
    boundaries.store(layer);
    decoder.emit_forward(layer, Pass::kForward, boundaries.written(layer), boundaries.written(layer + 1));
  }
}

std::vector<Plan> plans_of(const Plan& plan, std::vector<std::map<std::string, std::string>> tables) {
  std::vector<Plan> plans;
  for (auto& table : tables) {
    plans.push_back(plan);
    plans.back().settings["offload"] = std::move(table);
  }
  return plans;
}

}  // namespace

Offload::Offload(const HostServices& services) : services_(services) {}

const SettingsSchema& Offload::settings_schema() { return offload_schema(); }

SettingsTable Offload::given() const { return services_.settings ? *services_.settings : SettingsTable(offload_schema()); }

void Offload::configure(const ModelDescription& model, Plan& plan) const { plan.settings["offload"] = settings_of(resolve_policy(given(), model, plan)); }

void Offload::check(const ModelDescription& model, const Plan& plan) const { (void)policy_of(model, plan); }

std::vector<Plan> Offload::alternatives(const ModelDescription& model, const Plan& plan) const {
  return plans_of(plan, offload::alternatives(given(), model, plan));
}

std::vector<Plan> Offload::propose(const ModelDescription& model, const Plan& plan, const PlanningContext& context) const {
  return plans_of(plan, proposals(given(), model, plan, context));
}

int64_t Offload::feed_forward_tokens(const ModelDescription& model, const Plan& plan) const {
  const Policy policy = policy_of(model, plan);
  return std::min(policy.moe_chunk, policy.sub_batch * plan.workload.sequence_length);
}

void Offload::emit_training(StepEmitter& emitter) {
  const int layers = static_cast<int>(emitter.model().layers.size());
  const Policy policy = policy_of(emitter.model(), emitter.plan());
  AttentionPool pool(emitter, policy);
  Boundaries boundaries(emitter, policy, /*training=*/true);
  Transit transit(emitter, policy, boundaries, pool);
  Decoder decoder(emitter, policy, &pool, &transit);
  emit_forward(emitter, boundaries, decoder, layers);
  transit.end_forward();
  Activation gradient = emitter.add_rows(cat("gradient of layer ", layers), 0, emitter.plan().tokens_per_rank());
  emitter.emit_head(boundaries.written(layers).buffers, gradient.buffers);
  for (int layer = layers - 1; layer >= 0; --layer) {
    gradient = decoder.emit_backward(layer, boundaries.read(layer, decoder), gradient);
    boundaries.done(layer);
  }
  emitter.emit_embedding_backward(gradient.buffers);
  emitter.end_step();
}

void Offload::emit_evaluation(StepEmitter& emitter) {
  const int layers = static_cast<int>(emitter.model().layers.size());
  const Policy policy = policy_of(emitter.model(), emitter.plan());
  Boundaries boundaries(emitter, policy, /*training=*/false);
  Decoder decoder(emitter, policy, nullptr, nullptr);
  emit_forward(emitter, boundaries, decoder, layers);
  emitter.emit_head(boundaries.written(layers).buffers, {});
  emitter.end_step();
}

}  // namespace oom::offload
