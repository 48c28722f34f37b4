#include "measure.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "program_reading.h"

namespace oom::offload {
namespace {

constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();
constexpr int kMostPrograms = 6;

// Layers of one kind cost the same.
std::vector<int> kinds_of(const ModelDescription& model, const Plan& plan) {
  std::map<std::tuple<std::string, std::string, bool, bool>, int> numbers;
  std::vector<int> kinds;
  const auto holds = [](const std::vector<int>& layers, int layer) { return std::find(layers.begin(), layers.end(), layer) != layers.end(); };
  for (int layer = 0; layer < static_cast<int>(model.layers.size()); ++layer) {
    const LayerSpec& spec = model.layers[layer];
    const std::tuple kind(spec.mixer, spec.feed_forward, holds(plan.retained_attention, layer), holds(plan.retained_feed_forward, layer));
    kinds.push_back(numbers.try_emplace(kind, static_cast<int>(numbers.size())).first->second);
  }
  return kinds;
}

class Measurement {
 public:
  Measurement(const ModelDescription& model, const Plan& plan, const Policy& partition, const std::vector<LayerChoices>& choices, const PlanningContext& context)
      : model_(model), plan_(plan), partition_(partition), choices_(choices), context_(context), layers_(static_cast<int>(choices.size())), kinds_(kinds_of(model, plan)) {}

  Measured run() {
    for (int programs = 0; programs < kMostPrograms; ++programs) {
      bool shows_more = false;
      const Policy policy = next_policy(shows_more);
      if (!shows_more) break;
      Plan shown = plan_;
      shown.settings["offload"] = settings_of(policy);
      const AccountedProgram step = context_.emit(shown);
      const ProgramReading reading = read_program(step, context_, layers_);
      note(policy, reading);
      if (programs == 0) first_ = reading;
      if (programs == 0) limits(policy, step);
    }
    assemble();
    return std::move(measured_);
  }

 private:
  enum class Shown { kAnyPass, kTraversal };

  bool may_regenerate(int layer) const { return layer > 0 && layer < layers_ && !stays(layer, layers_, partition_.buffers) && choices_[layer].regenerate; }
  bool must_regenerate(int layer) const { return may_regenerate(layer) && !choices_[layer].host && !choices_[layer].gpu; }

  // Layers whose every other input is regenerated, showing what has not been seen.
  Policy next_policy(bool& shows_more) {
    Policy policy = partition_;
    policy.regenerate_cap = layers_;
    bool regenerate = false;  // this layer's input
    for (int layer = 0; layer < layers_; ++layer) {
      const LayerChoices& choices = choices_[layer];
      regenerate = regenerate || must_regenerate(layer);
      policy.layers[layer].boundary = regenerate ? Boundary::kRegenerate : choices.host || !choices.gpu ? Boundary::kHost : Boundary::kGpu;
      const bool may_pass = may_regenerate(layer + 1) && (!regenerate || must_regenerate(layer + 1));
      const auto is_new = [&](bool keeps, Shown what) { return !shown_.contains({kinds_[layer], keeps, what}); };
      bool keeps = choices.keep && !choices.discard;
      for (const Shown what : {Shown::kAnyPass, Shown::kTraversal}) {
        for (const bool other : {false, true}) {
          if ((other ? choices.keep : choices.discard) && is_new(other, what) && (what == Shown::kAnyPass || may_pass)) keeps = other;
        }
      }
      policy.layers[layer].keep_attention = keeps;
      regenerate = may_pass && is_new(keeps, Shown::kTraversal);
      shows_more = shows_more || regenerate || is_new(keeps, Shown::kAnyPass);
      shown_.insert({kinds_[layer], keeps, Shown::kAnyPass});
      if (regenerate) shown_.insert({kinds_[layer], keeps, Shown::kTraversal});
    }
    return policy;
  }

  // What a program shows of each kind of layer.
  void note(const Policy& policy, const ProgramReading& reading) {
    for (int layer = 0; layer < layers_; ++layer) {
      const ProgramReading::Layer& its = reading.layers[layer];
      const bool keeps = policy.layers[layer].keep_attention;
      LayerCosts::Passes& passes = passes_[{kinds_[layer], keeps}];
      const auto take = [&](const ProgramReading::Pass& pass, int64_t carried, Work& work) {
        if (!pass.seen) return;
        work.seconds = std::max(work.seconds, pass.seconds);
        work.bytes = std::max(work.bytes, pass.bytes - carried);
      };
      take(its.forward, its.carried_bytes, passes.forward);
      take(its.backward, its.carried_bytes, passes.backward);
      // What is carried while a layer is passed is that of the layer above, where the regenerated input is wanted.
      if (layer + 1 < layers_) take(its.traverse, reading.layers[layer + 1].carried_bytes, passes.traverse);
      if (its.result_bytes > 0) result_bytes_[kinds_[layer]] = its.result_bytes;
    }
  }

  void limits(const Policy& policy, const AccountedProgram& step) {
    const bool on_host = plan_.device == DeviceKind::kCpu;
    int64_t stored = 0, largest = 0;
    for (const ProgramReading::Layer& layer : first_.layers) {
      stored += layer.result_bytes;
      largest = std::max(largest, layer.result_bytes);
    }
    StepCosts costs;
    for (const ProgramReading::Layer& layer : first_.layers) costs.layers.push_back({.groups_heads = layer.groups_heads});
    const int64_t on_gpu = std::count_if(policy.layers.begin(), policy.layers.end(), [](const LayerPolicy& layer) { return layer.boundary == Boundary::kGpu; });
    for (int layer = 0; layer < layers_; ++layer) stored += costs.leaves(policy, layer) ? input_bytes() : 0;
    const PlaceAccount& gpu = step.account.gpus[first_.rank];
    const int64_t persistent = gpu.persistent_bytes - on_gpu * input_bytes() - (policy.buffers == 1 ? input_bytes() + largest : 0);
    measured_.gpu_bytes = context_.gpu_budget_bytes.empty() ? kUnbounded : context_.gpu_budget_bytes.at(first_.rank) - persistent;
    measured_.host_bytes = kUnbounded;
    measured_.shared_bytes = kUnbounded;
    for (int node = 0; node < step.program.nodes; ++node) {
      int64_t ranks = 0, device = 0;
      for (int rank = 0; rank < step.program.ranks; ++rank) {
        if (step.program.node_of_rank[rank] != node) continue;
        ++ranks;
        if (on_host) device += step.account.gpus[rank].peak_bytes - persistent;
      }
      if (ranks == 0) continue;
      ranks_on_node_ = std::max(ranks_on_node_, static_cast<int>(ranks));
      const int64_t left = context_.host_budget_bytes.at(node) - step.account.nodes[node].peak_bytes + ranks * stored;
      measured_.host_bytes = std::min(measured_.host_bytes, (left + device) / ranks);
      if (on_host) measured_.shared_bytes = std::min(measured_.shared_bytes, (left + device) / ranks);
    }
  }

  int64_t input_bytes() const { return plan_.tokens_per_rank() * model_.hidden * element_bytes(plan_.workload.compute); }

  void assemble() {
    StepCosts& costs = measured_.costs;
    costs.input_bytes = input_bytes();
    const auto input = static_cast<double>(costs.input_bytes);
    costs.input_out_seconds = copy_seconds(context_.costs, "boundary_out", input, true, ranks_on_node_);
    costs.input_in_seconds = copy_seconds(context_.costs, "boundary_in", input, false, ranks_on_node_);
    costs.head = {first_.head.seconds, first_.head.bytes};
    for (int layer = 0; layer < layers_; ++layer) {
      const ProgramReading::Layer& its = first_.layers[layer];
      LayerCosts layer_costs{
          .passes = {}, .weights_seconds = its.weights_seconds, .gradients_seconds = its.gradients_seconds, .carried_bytes = its.carried_bytes, .groups_heads = its.groups_heads};
      for (const bool keeps : {false, true}) layer_costs.passes[keeps] = passes_[{kinds_[layer], keeps}];
      const LayerChoices& choices = choices_[layer];
      if (choices.keep) {
        layer_costs.result_bytes = result_bytes_[kinds_[layer]];
        const auto bytes = static_cast<double>(layer_costs.result_bytes);
        layer_costs.result_out_seconds = copy_seconds(context_.costs, "attention_out", bytes, true, ranks_on_node_);
        layer_costs.result_in_seconds = copy_seconds(context_.costs, "attention_in", bytes, false, ranks_on_node_);
      }
      costs.layers.push_back(layer_costs);
    }
  }

  const ModelDescription& model_;
  const Plan& plan_;
  const Policy& partition_;
  const std::vector<LayerChoices>& choices_;
  const PlanningContext& context_;
  const int layers_;
  const std::vector<int> kinds_;
  std::set<std::tuple<int, bool, Shown>> shown_;
  std::map<std::pair<int, bool>, LayerCosts::Passes> passes_;  // by kind and whether results are kept
  std::map<int, int64_t> result_bytes_;                        // by kind
  ProgramReading first_;
  int ranks_on_node_ = 1;
  Measured measured_;
};

}  // namespace

Measured measure(const ModelDescription& model, const Plan& plan, const Policy& partition, const std::vector<LayerChoices>& choices, const PlanningContext& context) {
  return Measurement(model, plan, partition, choices, context).run();
}

}  // namespace oom::offload
