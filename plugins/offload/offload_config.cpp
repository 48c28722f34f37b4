#include "policy.h"

namespace oom::offload {
namespace {

Setting layers(std::string key, std::vector<std::string> words, std::string doc) {
  return {.key = std::move(key), .forms = kIntegerListForm, .words = std::move(words), .unit = "layers", .range = at_least(0), .fallback = std::string("auto"), .distinct = true,
          .may_be_empty = true, .doc = std::move(doc)};
}
Setting count(std::string key, std::string unit, SettingRange range, std::string doc) {
  return {.key = std::move(key), .forms = kIntegerForm, .words = {"auto"}, .unit = std::move(unit), .range = range, .fallback = std::string("auto"), .doc = std::move(doc)};
}

std::string check_boundaries(const SettingValue& value) {
  const std::string* text = std::get_if<std::string>(&value);
  if (!text || *text == "auto" || *text == "all") return {};
  const size_t plus = text->find("+1");
  const bool digits = plus != std::string::npos && plus > 0 && plus < 7 && plus + 2 == text->size() && text->find_first_not_of("0123456789") == plus && (*text)[0] != '0';
  return digits ? std::string() : "must be auto, all, \"n+1\" or a list of layers";
}

}  // namespace

const SettingsSchema& offload_schema() {
  static const SettingsSchema schema{
      .table = "offload",
      .doc = "Activations: how operators are cut, what is kept, what is replayed.",
      .settings = {count("attention_head_group", "query heads", at_least(0), "Query heads attended at once; 0 does not cut."),
                   count("attention_chunk", "tokens", at_least(1), "Tokens of a slice of sliding-window attention, which reads the keys and values of its window before the slice."),
                   count("gdn_chunk", "tokens", at_least(1), "Tokens of a Gated DeltaNet slice; above the sequence length, whole sequences."),
                   count("moe_chunk", "tokens", at_least(1), "Tokens of a feed-forward slice; ignored under ep, whose routing chunk rules."),
                   count("attention_batch", "tokens", at_least(1), "Tokens attended at once, in whole sequences."),
                   count("sub_batch", "sequences", at_least(1), "Sequences of a rank handled together inside a step."),
                   layers("keep_attention", {"auto", "none", "all"}, "Layers whose attention results stay in host memory from forward to backward."),
                   {.key = "keep_boundaries", .forms = kTextForm | kIntegerListForm, .words = {"auto", "all"}, .unit = "layers", .range = at_least(0), .fallback = std::string("auto"),
                    .distinct = true, .may_be_empty = true, .text_form = "n+1", .check = &check_boundaries,
                    .doc = "Layer inputs that are stored: all, one in n+1, or a list (the first is always); the others are regenerated."},
                   layers("boundaries_on_gpu", {"auto", "none"}, "Of the stored layer inputs, those that stay on the GPU."),
                   count("regenerate_cap", "boundaries", at_least(1), "Regenerated layer inputs held at once."),
                   count("buffers", "boundaries", between(1, 8),
                         "GPU buffers for layer inputs on their way to and from the host (1: nothing is brought ahead); one less, but at least one, for attention results.")}};
  return schema;
}

}  // namespace oom::offload
