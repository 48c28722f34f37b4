#include "oom/models/rotary_config.h"

#include "oom/models/config_values.h"

namespace oom::models {

ops::RotarySettings read_rotary(const ModelConfig& config, const ModelOptions& options, int64_t head_dim, int64_t max_positions, const RotaryDefaults& defaults) {
  ops::RotarySettings rotary{.theta = config.number("rope_theta", defaults.theta), .head_dim = head_dim, .original_length = max_positions};
  require_positive(config, "rope_theta", rotary.theta);
  const bool partial = defaults.partial_factor > 0;
  if (partial) rotary.partial_factor = config.number("partial_rotary_factor", defaults.partial_factor);
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const std::optional<ModelConfig> rope = config.child(key);
    if (!rope) continue;
    rotary.theta = rope->number("rope_theta", rotary.theta);
    require_positive(config, cat(key, ".rope_theta"), rotary.theta);
    if (partial) rotary.partial_factor = rope->number("partial_rotary_factor", rotary.partial_factor);
    for (const char* ignored : defaults.without_effect) rope->ignore({ignored});
    const std::string type = rope->string("rope_type", rope->string("type", "default"));
    if (type == "yarn") {
      rotary.kind = ops::RotaryKind::kYarn;
      rotary.factor = rope->number("factor");
      rotary.original_length = rope->integer("original_max_position_embeddings", max_positions);
      rotary.beta_fast = rope->number("beta_fast", rotary.beta_fast);
      rotary.beta_slow = rope->number("beta_slow", rotary.beta_slow);
      for (const auto& [name, value] : {std::pair<const char*, double>{".factor", rotary.factor}, {".original_max_position_embeddings", static_cast<double>(rotary.original_length)}, {".beta_fast", rotary.beta_fast},
                                        {".beta_slow", rotary.beta_slow}}) {
        require_positive(config, cat(key, name), value);
      }
      rope->require("attention_factor", "null", "YaRN with an attention_factor of its own");
    } else if (type != "default") {
      throw FileError(cat(config.source(), ": ", key, ".rope_type: must be default or yarn; got \"", type, "\""));
    }
  }
  if (options.yarn_factor > 1.0) {
    rotary.kind = ops::RotaryKind::kYarn;
    rotary.factor = options.yarn_factor;
  }
  return rotary;
}

}  // namespace oom::models
