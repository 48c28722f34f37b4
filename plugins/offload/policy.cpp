#include "policy.h"

#include <algorithm>
#include <functional>

namespace oom::offload {
namespace {

constexpr int64_t kBuffers = 3;

// Gated DeltaNet is computed in tiles of so many tokens; slices that end elsewhere would be tiled, and so rounded, otherwise.
constexpr int64_t kTile = 64;

template <typename Predicate>
std::string list_of(const std::vector<LayerPolicy>& layers, const Predicate& predicate) {
  std::string text;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    if (predicate(layers[layer])) text += cat(text.empty() ? "" : ", ", layer);
  }
  return cat("[", text, "]");
}

// Reads one table; collects what cannot be used.
class Resolver {
 public:
  Resolver(const SettingsTable& settings, const ModelDescription& model, const Plan& plan) : settings_(settings), model_(model), plan_(plan) {}

  Policy resolve() {
    policy_.layers.resize(model_.layers.size());
    sizes();
    tiles();
    windows();
    attempt([&] { boundaries(); });
    attempt([&] { gpu_boundaries(); });
    attempt([&] { kept_attention(); });
    retained();
    int64_t run = 0, longest = 1;
    for (const LayerPolicy& layer : policy_.layers) longest = std::max(longest, run = layer.boundary == Boundary::kRegenerate ? run + 1 : 0);
    policy_.regenerate_cap = std::min(settings_.find_integer("regenerate_cap").value_or(longest), longest);
    if (!faults_.empty()) throw ConfigError(faults_);
    return policy_;
  }

 private:
  void refuse(const char* key, const std::string& what) { faults_ += cat(faults_.empty() ? "" : "\n", settings_.where(key), ": ", what); }
  template <typename Step>
  void attempt(const Step& step) {
    try {
      step();
    } catch (const ConfigError& error) {
      faults_ += cat(faults_.empty() ? "" : "\n", error.what());
    }
  }

  // The layers that a key names; none when it is automatic.
  std::vector<int64_t> named(const char* key) const {
    std::vector<int64_t> layers;
    if (const auto found = settings_.resolve_layers(key, static_cast<int64_t>(policy_.layers.size()))) layers = *found;
    return layers;
  }

  void sizes() {
    const int64_t length = plan_.workload.sequence_length, sequences = plan_.sequences_per_rank(), tokens = plan_.tokens_per_rank();
    policy_.sub_batch = std::min(settings_.find_integer("sub_batch").value_or(sequences), sequences);
    policy_.moe_chunk = std::min(settings_.find_integer("moe_chunk").value_or(tokens), tokens);
    policy_.attention_batch = std::min(settings_.find_integer("attention_batch").value_or(tokens), tokens);
    policy_.gdn_chunk = std::min(settings_.find_integer("gdn_chunk").value_or(tokens), tokens);
    policy_.attention_chunk = std::min(settings_.find_integer("attention_chunk").value_or(tokens), tokens);
    policy_.head_group = settings_.find_integer("attention_head_group").value_or(0);
    policy_.buffers = settings_.find_integer("buffers").value_or(kBuffers);
    if (policy_.attention_batch < length) {
      refuse("attention_batch", cat("attention is cut into whole sequences: must be at least the ", length, " tokens of one, or \"auto\"; got ", policy_.attention_batch));
    }
  }

  void tiles() {
    if (!mixes(model_, "linear_attention") || policy_.gdn_chunk >= plan_.workload.sequence_length || policy_.gdn_chunk % kTile == 0) return;
    const int64_t below = policy_.gdn_chunk / kTile * kTile;
    refuse("gdn_chunk", cat("slices of a sequence are whole tiles: must be a multiple of ", kTile, ", or at least the ", plan_.workload.sequence_length, " tokens of a sequence; got ",
                            policy_.gdn_chunk, ". Near it: ", below > 0 ? cat(below, ", ") : std::string(), below + kTile));
  }

  void windows() {
    if (policy_.attention_chunk >= plan_.workload.sequence_length || mixes(model_, "sliding_attention")) return;
    refuse("attention_chunk", "no layer of this model has a sliding window: its attention is cut by attention_head_group");
  }

  void boundaries() {
    const SettingValue& value = settings_.get("keep_boundaries");
    const int64_t count = static_cast<int64_t>(policy_.layers.size());
    if (const std::string* text = std::get_if<std::string>(&value)) {
      if (*text == "auto" || *text == "all") return;
      const int64_t regenerated = std::stoll(*text);  // of "n+1": the schema has checked it
      if (regenerated >= count) refuse("keep_boundaries", cat("the model has ", count, " layers; n of \"n+1\" must be below that; got ", *text));
      for (int64_t layer = 0; layer < count; ++layer) policy_.layers[layer].boundary = layer % (regenerated + 1) == 0 ? Boundary::kHost : Boundary::kRegenerate;
      return;
    }
    for (LayerPolicy& layer : policy_.layers) layer.boundary = Boundary::kRegenerate;
    // What the embedding gives is always stored: there is nothing below to make it from.
    policy_.layers.front().boundary = Boundary::kHost;
    for (const int64_t layer : named("keep_boundaries")) policy_.layers[layer].boundary = Boundary::kHost;
  }

  void gpu_boundaries() {
    for (const int64_t layer : named("boundaries_on_gpu")) {
      if (policy_.layers[layer].boundary == Boundary::kRegenerate) {
        refuse("boundaries_on_gpu", cat("must name layers of keep_boundaries; the input of layer ", layer, " is regenerated. Kept: ",
                                        list_of(policy_.layers, [](const LayerPolicy& kept) { return kept.boundary != Boundary::kRegenerate; })));
      } else {
        policy_.layers[layer].boundary = Boundary::kGpu;
      }
    }
  }

  void kept_attention() {
    const bool all = settings_.is_word("keep_attention", "all");
    for (const int64_t layer : named("keep_attention")) {
      if (attends(model_.layers[layer])) {
        policy_.layers[layer].keep_attention = true;
      } else if (!all) {
        std::string there;
        for (size_t other = 0; other < model_.layers.size(); ++other) {
          if (attends(model_.layers[other])) there += cat(there.empty() ? "" : ", ", other);
        }
        refuse("keep_attention", cat("layer ", layer, " has no attention but ", model_.layers[layer].mixer, "; layers with attention: [", there, "]"));
      }
    }
  }

  // Attention is retained whole: what a cut mixer needs from slice to slice exists only within one layer's backward.
  void retained() {
    const auto at = [&](int layer) -> LayerPolicy& {
      OOM_CHECK(layer >= 0 && layer < static_cast<int>(policy_.layers.size()), "retained layer ", layer, " of ", policy_.layers.size());
      return policy_.layers[layer];
    };
    for (const int layer : plan_.retained_feed_forward) at(layer).retain_feed_forward = true;
    std::string attending, windowed, recurrent, all;
    for (const int layer : plan_.retained_attention) {
      at(layer).retain_attention = true;
      std::string& kind = attends(model_.layers[layer]) ? attending : recurrent;
      for (std::string* list : {&kind, &all}) *list += cat(list->empty() ? "" : ", ", layer);
      if (model_.layers[layer].mixer == "sliding_attention") windowed += cat(windowed.empty() ? "" : ", ", layer);
    }
    const auto refuse_cut = [&](const char* key, int64_t value, const std::string& layers, const std::string& cure) {
      refuse(key, cat("cuts the attention of layers [", layers, "], which retain it whole (retain_attention); got ", value, "; cure: ", cure, ", or \"auto\", or no such layers in retain_attention"));
    };
    if (!attending.empty() && policy_.head_group > 0) refuse_cut("attention_head_group", policy_.head_group, attending, "0");
    if (!attending.empty() && policy_.attention_batch < plan_.tokens_per_rank()) refuse_cut("attention_batch", policy_.attention_batch, attending, cat(plan_.tokens_per_rank()));
    if (!windowed.empty() && policy_.attention_chunk < plan_.workload.sequence_length) refuse_cut("attention_chunk", policy_.attention_chunk, windowed, cat(plan_.workload.sequence_length));
    if (!recurrent.empty() && policy_.gdn_chunk < plan_.tokens_per_rank()) refuse_cut("gdn_chunk", policy_.gdn_chunk, recurrent, cat(plan_.tokens_per_rank()));
    if (!all.empty() && policy_.sub_batch < plan_.sequences_per_rank()) refuse_cut("sub_batch", policy_.sub_batch, all, cat(plan_.sequences_per_rank()));
  }

  const SettingsTable& settings_;
  const ModelDescription& model_;
  const Plan& plan_;
  Policy policy_;
  std::string faults_;
};

}  // namespace

bool attends(const LayerSpec& layer) { return layer.mixer == "full_attention" || layer.mixer == "sliding_attention"; }

bool mixes(const ModelDescription& model, std::string_view mixer) {
  return std::any_of(model.layers.begin(), model.layers.end(), [&](const LayerSpec& layer) { return layer.mixer == mixer; });
}

bool Policy::regenerates() const {
  return std::any_of(layers.begin(), layers.end(), [](const LayerPolicy& layer) { return layer.boundary == Boundary::kRegenerate; });
}

Policy resolve_policy(const SettingsTable& settings, const ModelDescription& model, const Plan& plan) { return Resolver(settings, model, plan).resolve(); }

Policy policy_of(const ModelDescription& model, const Plan& plan) {
  return resolve_policy(parse_settings(offload_schema(), plan.settings_of("offload"), "settings.offload"), model, plan);
}

std::map<std::string, std::string> settings_of(const Policy& policy) {
  const auto is = [](Boundary boundary) { return [boundary](const LayerPolicy& layer) { return layer.boundary == boundary; }; };
  const auto is_kept = [](const LayerPolicy& layer) { return layer.keep_attention; };
  return {{"attention_head_group", cat(policy.head_group)},
          {"attention_chunk", cat(policy.attention_chunk)},
          {"gdn_chunk", cat(policy.gdn_chunk)},
          {"moe_chunk", cat(policy.moe_chunk)},
          {"attention_batch", cat(policy.attention_batch)},
          {"sub_batch", cat(policy.sub_batch)},
          {"keep_attention", list_of(policy.layers, is_kept)},
          {"keep_boundaries", policy.regenerates() ? list_of(policy.layers, [](const LayerPolicy& layer) { return layer.boundary != Boundary::kRegenerate; }) : "\"all\""},
          {"boundaries_on_gpu", list_of(policy.layers, is(Boundary::kGpu))},
          {"regenerate_cap", cat(policy.regenerate_cap)},
          {"buffers", cat(policy.buffers)}};
}

}  // namespace oom::offload
