/// Layouts of routed experts in files: fused as transformers keeps them in memory, or one tensor an expert and projection.
#pragma once

#include <string>
#include <vector>

#include "oom/model.h"
#include "oom/model_config.h"

namespace oom::models {

/// Names of one expert's tensors behind "STEM.EXPERT.".
struct ExpertFileNames {
  std::string stem;  ///< "model.layers.3.mlp.experts"
  std::string gate = "gate_proj.weight", up = "up_proj.weight", down = "down_proj.weight";
};

/// The layout with a tensor for each expert of `spec`, which is gate_up_proj [E, 2I, H] or down_proj [E, H, I] by its name. Gate rows come first.
OOM_API FileLayout split_expert_layout(const ParameterSpec& spec, const ExpertFileNames& names);
/// The layout with the parameter in one tensor of its own name.
OOM_API FileLayout whole_layout(const ParameterSpec& spec);
/// For families whose language model may lie inside a multimodal one: fused, then an expert at a time, under the prefix of the config at hand ("model.", or
/// "model.language_model." where it is `nested`), then under the other.
OOM_API std::vector<FileLayout> layouts_under_prefixes(const ParameterSpec& spec, bool nested);
/// Keys of config.json that say nothing about training: token ids, versions, cache and output switches.
OOM_API void ignore_bookkeeping(const ModelConfig& config);

}  // namespace oom::models
