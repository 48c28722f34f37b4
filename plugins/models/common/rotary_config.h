/// Rotary settings out of a config.json: older files write rope_theta and rope_scaling, newer ones rope_parameters.
#pragma once

#include <oom/model_adapter.h>
#include <oom/ops/rotary.h>

namespace oom::models {

/// Reads the keys and marks them as read. `default_theta` stands where the file names none. Types default and yarn are taken, others refused by
/// name; ModelOptions::yarn_factor above one asks for YaRN with that factor, the original length being max_position_embeddings.
ops::RotarySettings read_rotary(const ModelConfig& config, const ModelOptions& options, int64_t head_dim, int64_t max_positions, double default_theta);

}  // namespace oom::models
