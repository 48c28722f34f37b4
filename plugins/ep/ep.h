/// Expert parallelism: each rank owns a contiguous range of every layer's experts, streams and updates those alone, and computes them for the tokens
/// of all ranks, which are pushed to it and back. README.md in this folder tells the whole story.
#pragma once

#include <oom/expert_strategy.h>
#include <oom/settings.h>

#include <map>
#include <set>

#include "ep_plan.h"
#include "exchange.h"

namespace oom::ep {

class Ep final : public ExpertStrategy {
 public:
  explicit Ep(const HostServices& services);
  static const SettingsSchema& settings_schema();

  void configure(const ModelDescription& model, Plan& plan) const override;
  void check(const ModelDescription& model, Plan& plan) const override { (void)exchange_shape(model, plan); }
  std::vector<Plan> alternatives(const ModelDescription& model, const Plan& plan, bool last_resort) const override {
    return smaller_chunks(services_.settings, model, plan, last_resort);
  }
  Retention retention() const override {
    const auto open = [&](const char* key) { return !services_.settings || services_.settings->is_auto(key); };
    return {.feed_forward = open("retain"), .attention = open("retain_attention")};
  }
  void add_units(StepEmitter& emitter) override;
  void emit_forward(StepEmitter& emitter, int layer, const ExpertBuffers& buffers) override;
  void emit_backward(StepEmitter& emitter, int layer, const ExpertBuffers& buffers, const ExpertGradientBuffers& gradients) override;

 private:
  const HostServices& services_;
  // Of the program that is being emitted. Its actions hold on to the exchange; nothing else is needed once they run.
  std::shared_ptr<Exchange> exchange_;
  std::vector<std::vector<UnitId>> shards_;  // by layer and owner; empty: not routed
  std::set<int> forwarded_;                  // layers whose forward has been emitted
  std::map<int, RankBuffers> orders_;        // by layer: what the pass before its backward leaves for it
  std::map<int, std::vector<RankBuffers>> kept_;  // of retained layers, likewise
};

}  // namespace oom::ep
