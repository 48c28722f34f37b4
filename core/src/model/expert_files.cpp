#include "oom/models/expert_files.h"

namespace oom::models {

FileLayout split_expert_layout(const ParameterSpec& spec, const ExpertFileNames& names) {
  FileLayout layout;
  const bool gate_up = spec.name.ends_with("gate_up_proj");
  const int64_t experts = spec.shape[0], rows = gate_up ? spec.shape[1] / 2 : spec.shape[1], columns = spec.shape[2];
  for (int64_t expert = 0; expert < experts; ++expert) {
    const int64_t first = expert * spec.shape[1] * columns;
    const std::string stem = cat(names.stem, ".", expert, ".");
    if (gate_up) {
      layout.push_back({stem + names.gate, first, {rows, columns}});
      layout.push_back({stem + names.up, first + rows * columns, {rows, columns}});
    } else {
      layout.push_back({stem + names.down, first, {rows, columns}});
    }
  }
  return layout;
}

FileLayout whole_layout(const ParameterSpec& spec) { return {{spec.name, 0, spec.shape}}; }

std::vector<FileLayout> layouts_under_prefixes(const ParameterSpec& spec, bool nested) {
  const std::string text = "model.", inner = "model.language_model.";
  if (!spec.name.starts_with(text)) return {whole_layout(spec)};
  std::vector<FileLayout> layouts;
  for (const std::string& prefix : {nested ? inner : text, nested ? text : inner}) {
    ParameterSpec named = spec;
    named.name = prefix + spec.name.substr(text.size());
    layouts.push_back(whole_layout(named));
    if (spec.role == ParameterRole::kExpert) layouts.push_back(split_expert_layout(named, {.stem = named.name.substr(0, named.name.rfind('.'))}));
  }
  return layouts;
}

void ignore_bookkeeping(const ModelConfig& config) {
  config.ignore({"architectures", "model_type", "bos_token_id", "eos_token_id", "pad_token_id", "torch_dtype", "dtype", "use_cache", "transformers_version", "_name_or_path",
                 "output_attentions", "output_hidden_states", "return_dict", "chunk_size_feed_forward", "is_encoder_decoder", "problem_type", "id2label", "label2id",
                 "attn_implementation", "_attn_implementation", "experts_implementation", "default_theta", "router_aux_loss_coef"});
}

}  // namespace oom::models
