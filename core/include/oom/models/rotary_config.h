/// Rotary settings out of a config.json: older files write rope_theta and rope_scaling, newer ones rope_parameters.
#pragma once

#include <vector>

#include "oom/model_adapter.h"
#include "oom/ops/rotary.h"

namespace oom::models {

/// What a family's own class says where config.json does not.
struct RotaryDefaults {
  double theta = 10000.0;
  /// Share of each head that is rotated; 0: the family rotates whole heads and knows no key for it.
  double partial_factor = 0;
  /// Keys of the rotary parameters that change nothing for text.
  std::vector<const char*> without_effect;
};

/// Reads the keys and marks them as read. Types default and yarn are taken, others refused by name; ModelOptions::yarn_factor above one asks for YaRN
/// with that factor, the original length being max_position_embeddings.
OOM_API ops::RotarySettings read_rotary(const ModelConfig& config, const ModelOptions& options, int64_t head_dim, int64_t max_positions, const RotaryDefaults& defaults);

}  // namespace oom::models
