/// Decoder sublayers built from the core's operators, configured by data: what model adapters of the known kind return. A family that
/// needs nothing new is a table of these settings; one that does brings its own Mixer or FeedForward.
///
/// Positions name parameters by their place in the layer's list (MixerCall::weights); -1: the family has no such parameter.
#pragma once

#include <memory>

#include "oom/ops/flavour.h"
#include "oom/ops/rotary.h"
#include "oom/sublayer.h"

namespace oom {
inline namespace abi_1 {

struct NormSettings {
  int weight = -1;
  double epsilon = 1e-6;
  ops::NormFlavour flavour = ops::NormFlavour::kLlama;
  bool weightless = false;  ///< a norm without a weight (flavour kPlain), rather than none
  bool present() const { return weight >= 0 || weightless; }
};

/// y = x + norm(Wo attention(rope(norm(Wq n)), rope(norm(Wk n)), norm(Wv n))),  n = norm(x); norms that are not present are the identity. Causal.
struct AttentionSettings {
  int64_t hidden = 0, query_heads = 0, kv_heads = 0, head_dim = 0;
  double scale = 0;              ///< on the scores
  int64_t window_tokens = 0;     ///< 0: all earlier tokens; W: itself and W - 1 earlier ones
  ops::RotarySettings rotary;
  NormSettings input_norm;
  NormSettings query_norm, key_norm, value_norm;  ///< per head
  NormSettings output_norm;      ///< before the residual sum
  int query = -1, key = -1;
  int value = -1;                ///< -1: keys and values share Wk; values branch off before the key's norm and rotation
  int output = -1;
  bool output_gate = false;      ///< query [heads * 2 head_dim, H]: a head's query rows, then its gate rows; Wo reads attention * sigmoid(gate)
};
OOM_API std::unique_ptr<Mixer> make_attention(const AttentionSettings& settings);

/// A gated MLP: down(act(gate n) * up n).
struct MlpSettings {
  int gate = -1, up = -1, down = -1;  ///< [I, H], [I, H], [H, I]
  int64_t width = 0;
  ops::GatedActivation activation = ops::GatedActivation::kSilu;
  bool present() const { return gate >= 0; }
};

/// z = y + sum_k w_k expert_k(n) + sigmoid(n Wsg) shared(n),  n = norm(y). Without `experts`: z = y + shared(n), a dense layer.
struct MoeSettings {
  int64_t hidden = 0, experts = 0;
  NormSettings input_norm;
  int router = -1;               ///< [E, H]
  ops::RouterSettings routing;
  MlpSettings shared;            ///< branch that every token takes
  int shared_gate = -1;          ///< [1, H]
};
OOM_API std::unique_ptr<FeedForward> make_moe(const MoeSettings& settings);

}  // namespace abi_1
}  // namespace oom
