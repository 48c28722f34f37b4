#include "offload.h"

namespace oom::offload {
namespace {

Setting layers(std::string key, std::vector<std::string> words, std::string doc) {
  return {.key = std::move(key), .forms = kIntegerListForm, .words = std::move(words), .unit = "layers", .range = at_least(0), .fallback = std::string("auto"), .distinct = true,
          .may_be_empty = true, .doc = std::move(doc)};
}
Setting count(std::string key, std::string unit, double minimum, std::string doc) {
  return {.key = std::move(key), .forms = kIntegerForm, .words = {"auto"}, .unit = std::move(unit), .range = at_least(minimum), .fallback = std::string("auto"), .doc = std::move(doc)};
}

std::string check_boundaries(const SettingValue& value) {
  const std::string* text = std::get_if<std::string>(&value);
  if (!text || *text == "auto" || *text == "all") return {};
  const size_t plus = text->find("+1");
  const bool digits = plus != std::string::npos && plus > 0 && plus + 2 == text->size() && text->find_first_not_of("0123456789") == plus && (*text)[0] != '0';
  return digits ? std::string() : "must be auto, all, \"n+1\" or a list of layers";
}

}  // namespace

const SettingsSchema& Offload::settings_schema() {
  static const SettingsSchema schema{
      .table = "offload",
      .doc = "Activations: how operators are cut, what is kept, what is replayed.",
      .settings = {count("attention_head_group", "query heads", 0, "Query heads attended at once; 0 does not cut."),
                   count("gdn_chunk", "tokens", 1, "Tokens of a Gated DeltaNet slice."),
                   count("moe_chunk", "tokens", 1, "Tokens of a feed-forward slice; ignored under ep, whose routing chunk rules."),
                   count("attention_batch", "tokens", 1, "Tokens attended at once, in whole sequences."),
                   count("sub_batch", "sequences", 1, "Sequences handled together inside a step."),
                   layers("keep_attention", {"auto", "none", "all"}, "Layers whose attention results stay in host memory from forward to backward."),
                   {.key = "keep_boundaries", .forms = kTextForm | kIntegerListForm, .words = {"auto", "all"}, .unit = "layers", .fallback = std::string("auto"), .distinct = true,
                    .may_be_empty = true, .text_form = "n+1", .check = &check_boundaries, .doc = "Layer inputs that are stored: all, one in n+1, or a list; the others are regenerated."},
                   layers("boundaries_on_gpu", {"auto", "none"}, "Of the stored layer inputs, those that stay on the GPU."),
                   count("regenerate_cap", "boundaries", 1, "Regenerated layer inputs held at once.")}};
  return schema;
}

void Offload::configure(const ModelDescription& model, Plan& plan) const {
  if (!services_.settings) return;
  const SettingsTable& settings = *services_.settings;
  const int64_t layer_count = static_cast<int64_t>(model.layers.size());
  const auto refuse = [&](const char* key, const std::string& supported) {
    throw ConfigError(cat(settings.where(key), ": this build stores every boundary and replays whole layers; it takes ", supported, " here. Remove the key"));
  };
  const auto is_whole = [&](const char* key, int64_t whole) { return settings.is_auto(key) || settings.get_integer(key) >= whole; };
  if (!settings.is_auto("attention_head_group") && settings.get_integer("attention_head_group") != 0) refuse("attention_head_group", "auto or 0");
  if (!is_whole("moe_chunk", plan.tokens_per_rank())) refuse("moe_chunk", cat("auto, or at least the ", plan.tokens_per_rank(), " tokens of a rank"));
  if (!is_whole("attention_batch", plan.tokens_per_rank())) refuse("attention_batch", cat("auto, or at least the ", plan.tokens_per_rank(), " tokens of a rank"));
  if (!is_whole("sub_batch", plan.sequences_per_rank())) refuse("sub_batch", cat("auto, or at least the ", plan.sequences_per_rank(), " sequences of a rank"));
  const auto kept = settings.resolve_layers("keep_attention", layer_count);
  if (kept && !kept->empty()) refuse("keep_attention", "auto or none");
  const SettingValue& boundaries = settings.get("keep_boundaries");
  const std::string* word = std::get_if<std::string>(&boundaries);
  if (!(word && (*word == "auto" || *word == "all"))) refuse("keep_boundaries", "auto or all");
  const auto on_gpu = settings.resolve_layers("boundaries_on_gpu", layer_count);
  if (on_gpu && !on_gpu->empty()) refuse("boundaries_on_gpu", "auto or none");
  plan.settings["offload"] = {{"keep_boundaries", "\"all\""}, {"keep_attention", "\"none\""}};
}

}  // namespace oom::offload
