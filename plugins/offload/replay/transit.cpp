#include "transit.h"

#include <set>

namespace oom::offload {

Transit::Transit(StepEmitter& emitter, const Policy& policy, Boundaries& boundaries, AttentionPool& pool) : boundaries_(boundaries), pool_(pool) {
  const int layers = static_cast<int>(policy.layers.size());
  for (int layer = 0; layer < layers; ++layer) groups_heads_.push_back(groups_heads(emitter, policy, layer));
  const auto input = [&](int layer) { return boundaries.is_on_host(layer) ? layer : -1; };
  std::set<int> held;
  for (int layer = layers - 1; layer >= 0; --layer) {
    if (boundaries.regenerates(layer) && !held.contains(layer)) {
      const int from = boundaries.source(layer);
      for (int passed = from; passed < layer; ++passed) {
        passes_.push_back({passed, true, passed == from ? input(from) : -1});
        if (passed + 1 > layer - policy.regenerate_cap) held.insert(passed + 1);
      }
    }
    passes_.push_back({layer, false, input(layer)});
  }
}

// Results have had one layer's time.
void Transit::begin_forward(int layer) { pool_.release(groups_heads_[layer] ? layer - 1 : layer - 2, layer); }

void Transit::before_result(int layer) { boundaries_.make_room(layer, groups_heads_[layer]); }

void Transit::end_forward() {
  pool_.end_forward();
  boundaries_.end_forward();
}

void Transit::begin_pass() {
  const Pass& pass = passes_.at(++pass_);
  pool_.keep_only(pass.layer, groups_heads_[pass.layer] ? pass.layer : next_layer());
  if (!groups_heads_[pass.layer]) reserve(/*in_use=*/true);
  else if (!pass.regenerates) boundaries_.let_go_others(pass.layer);
}

void Transit::mixer_done() { reserve(/*in_use=*/false); }

void Transit::reserve(bool in_use) {
  const int layer = passes_[pass_].layer;
  if (next_layer() != layer) pool_.reserve(next_layer(), layer, in_use);
  for (size_t later = static_cast<size_t>(pass_) + 1; later < passes_.size(); ++later) {
    const Pass& pass = passes_[later];
    if (pass.input >= 0 && !boundaries_.reserve(pass.input, layer)) return;
    if (groups_heads_[pass.layer]) return;
  }
}

}  // namespace oom::offload
