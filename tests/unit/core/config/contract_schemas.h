/// The tables of the plugins ep, local and offload as the contract states them, for tests that need no plugin.
#pragma once

#include <vector>

#include "oom/settings.h"

namespace oom::config {

inline std::string check_keep_one_in(const SettingValue& value) {
  const auto* text = std::get_if<std::string>(&value);
  if (!text || *text == "auto" || *text == "all") return "";
  const size_t plus = text->find('+');
  const bool fits = plus != std::string::npos && plus > 0 && plus <= 6 && text->substr(plus) == "+1" &&
                    text->find_first_not_of("0123456789") == plus && text->front() != '0';
  return fits ? "" : "must be \"auto\", \"all\", \"n+1\" with n from 1 up, or a list of layers";
}

inline Setting auto_count(std::string key, std::string unit, std::string doc, double minimum = 1) {
  return {.key = std::move(key), .forms = kIntegerForm, .words = {"auto"}, .unit = std::move(unit), .range = between(minimum, 1 << 30),
          .fallback = "auto", .doc = std::move(doc)};
}

inline Setting layer_choice(std::string key, SettingForms forms, std::vector<std::string> words, std::string doc) {
  return {.key = std::move(key), .forms = forms, .words = std::move(words), .unit = "layers", .range = between(0, 1 << 20),
          .fallback = "auto", .distinct = true, .may_be_empty = true, .doc = std::move(doc)};
}

inline std::vector<SettingsSchema> contract_schemas() {
  const SettingForms count_or_list = kIntegerForm | kIntegerListForm;
  Setting boundaries = layer_choice("keep_boundaries", kIntegerListForm | kTextForm, {"auto", "all"},
                                    "Decoder layers whose inputs are kept; the others are regenerated.");
  boundaries.text_form = "\"n+1\" (keep one in n+1)";
  boundaries.check = check_keep_one_in;
  return {
      {.table = "ep", .doc = "Expert parallelism: tokens travel to the owners of experts.", .settings = {
        layer_choice("retain", count_or_list, {"auto", "all", "none"}, "Layers whose MoE backward tensors stay on the GPU; a count n means layers 0 to n-1."),
        layer_choice("retain_attention", count_or_list, {"auto", "all", "none"}, "Layers whose attention backward tensors stay on the GPU."),
        auto_count("routing_chunk", "tokens", "Tokens that are exchanged at once."),
      }},
      {.table = "local", .doc = "Local execution: the expert bank travels to every GPU.", .settings = {
        {.key = "delivery", .words = {"auto", "full", "shard"}, .fallback = "auto", .doc = "How the expert bank reaches the GPUs."},
      }},
      {.table = "offload", .doc = "Split, keep and replay of activations.", .settings = {
        auto_count("attention_head_group", "query heads", "Query heads a group; 0 does not cut.", 0),
        auto_count("gdn_chunk", "tokens", "Chunk of Gated DeltaNet."),
        auto_count("moe_chunk", "tokens", "Chunk of MoE layers."),
        auto_count("attention_batch", "tokens", "Tokens of attention at a time, in whole sequences."),
        auto_count("sub_batch", "sequences", "Sequences at a time, for everything."),
        layer_choice("keep_attention", kIntegerListForm, {"auto", "none", "all"}, "Layers whose attention outputs are kept on the host."),
        boundaries,
        layer_choice("boundaries_on_gpu", kIntegerListForm, {"auto", "none"}, "Kept boundaries that stay on the GPU."),
        auto_count("regenerate_cap", "boundaries", "Regenerated boundaries held at once."),
      }},
  };
}

}  // namespace oom::config
