/// What of a Gemma4 config.json the description and the operators need.
#pragma once

#include <oom/model_adapter.h>
#include <oom/ops/rotary.h>

#include <vector>

namespace oom::gemma4 {

/// Sliding and full layers differ in head dimension, key/value heads, window and rotary frequencies.
struct LayerGeometry {
  bool sliding = false;
  int64_t head_dim = 0, kv_heads = 0;
};

struct Geometry {
  int64_t hidden = 0, vocabulary = 0, heads = 0, experts = 0, top_k = 0, expert_width = 0, dense_width = 0, window = 0, max_positions = 0, padding_token = -1;
  std::vector<LayerGeometry> layers;
  bool shared_key_value = false;  ///< full layers: values are the keys' projection
  bool tied = true, nested = false;  ///< nested: the text model is a part of a larger one, whose files say model.language_model.
  double epsilon = 1e-6, initial_std = 0.02, soft_cap = 0;
  ops::RotarySettings sliding_rotary, full_rotary;

  bool shares_value(int layer) const { return shared_key_value && !layers[layer].sliding; }
  ops::RotarySettings rotary(int layer) const;
};

/// Reads every key of `config` (Gemma4ForCausalLM's, or text_config within Gemma4ForConditionalGeneration's); throws FileError naming what is missing,
/// wrong or not understood.
Geometry read_geometry(const ModelConfig& config, const ModelOptions& options);

}  // namespace oom::gemma4
