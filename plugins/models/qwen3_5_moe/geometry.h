/// What of a Qwen3.5-MoE config.json the description and the operators need.
#pragma once

#include <oom/model_adapter.h>
#include <oom/ops/rotary.h>

namespace oom::qwen3_5_moe {

struct Geometry {
  bool nested = false;         ///< the language model of a vision model: its keys lie in text_config
  int64_t hidden = 0, vocabulary = 0;
  std::vector<bool> linear;    ///< by layer: Gated DeltaNet, not attention
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0, taps = 0;  ///< of the Gated DeltaNet
  int64_t experts = 0, top_k = 0, expert_width = 0, shared_width = 0;
  double epsilon = 0, initial_std = 0;
  bool tied = false;
  ops::RotarySettings rotary;
  int64_t max_positions = 0;
  int64_t padding_token = -1;  ///< its row of the embedding is not trained; -1: none
  double aux_coefficient = 0;

  int64_t key_width() const { return key_heads * key_dim; }
  int64_t value_width() const { return value_heads * value_dim; }
  int64_t channels() const { return 2 * key_width() + value_width(); }
};

/// Reads every key, or throws FileError with what is missing, wrong or not understood.
Geometry read_geometry(const ModelConfig& config, const ModelOptions& options);
/// The same of a description's own copy.
Geometry geometry_of(const ModelDescription& description);

}  // namespace oom::qwen3_5_moe
