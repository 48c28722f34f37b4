/// What a plan says of activations, layer by layer: the table that drives a step.
#pragma once

#include <oom/model.h>
#include <oom/plan.h>
#include <oom/settings.h>

#include <algorithm>
#include <string_view>

namespace oom::offload {

/// At most: GPU buffers of attention results on their way, beside so many of layer inputs.
constexpr int64_t result_buffers(int64_t buffers) { return std::max<int64_t>(buffers - 1, 1); }
/// Regenerated inputs take the place of what they are made from.
constexpr bool regenerates_in_ring(int64_t buffers, int64_t regenerate_cap) { return buffers == 1 && regenerate_cap == 1; }

/// The first of the last few layers whose inputs are still on the GPU when the backward begins: as many as `buffers`, with that of the head, and none that would wait there
/// beside the backward of grouped attention of a layer above. `groups(layer)`: whether a layer's attention goes by groups of heads.
template <typename Groups>
int first_staying(int layers, int64_t buffers, const Groups& groups) {
  int first = layers;
  while (first > 0 && first - 1 + buffers > layers && (first == layers || !groups(first))) --first;
  return first;
}

/// True for mixers that have attention results to keep.
bool attends(const LayerSpec& layer);
/// Whether a layer of the model has this mixer.
bool mixes(const ModelDescription& model, std::string_view mixer);

/// Where the input of a layer is from the forward to its backward.
enum class Boundary {
  kHost,        ///< stored in host memory
  kGpu,         ///< stored on the GPU
  kRegenerate,  ///< nowhere: made again from the nearest stored one below
};

struct LayerPolicy {
  Boundary boundary = Boundary::kHost;
  bool keep_attention = false;  ///< O and LSE are in host memory from the forward to the backward
  // What the plan says, not this strategy's settings; it goes before them.
  bool retain_attention = false;     ///< the input, what the mixer saves and its result are on the GPU likewise
  bool retain_feed_forward = false;  ///< what the feed-forward saves is

  /// Made again for the layer's backward.
  bool regenerates() const { return boundary == Boundary::kRegenerate && !retain_attention; }
  bool keeps_results() const { return keep_attention && !retain_attention; }
};

struct Policy {
  std::vector<LayerPolicy> layers;
  int64_t head_group = 0;       ///< query heads attended at once; 0: all
  int64_t attention_chunk = 0;  ///< tokens of a slice of sliding-window attention
  int64_t gdn_chunk = 0;        ///< tokens of a Gated DeltaNet slice
  int64_t moe_chunk = 0;        ///< tokens of a feed-forward slice
  int64_t attention_batch = 0;  ///< tokens attended at once, in whole sequences
  int64_t sub_batch = 0;        ///< sequences of a rank handled together
  int64_t regenerate_cap = 1;   ///< regenerated inputs held at once
  int64_t buffers = 3;          ///< GPU buffers of layer inputs on their way; one: each layer's result takes the place of its input

  bool regenerates() const;
  int64_t result_buffers() const { return offload::result_buffers(buffers); }
  bool regenerates_in_ring() const { return offload::regenerates_in_ring(buffers, regenerate_cap); }
};

/// Resolves a table of settings for a workload, and the retained layers of `plan`. Throws ConfigError with every value that cannot be used, a line each.
Policy resolve_policy(const SettingsTable& settings, const ModelDescription& model, const Plan& plan);
/// The policy that a configured plan holds. Throws ConfigError whose lines begin with "settings.offload".
Policy policy_of(const ModelDescription& model, const Plan& plan);
/// The table of a plan.
std::map<std::string, std::string> settings_of(const Policy& policy);

const SettingsSchema& offload_schema();

}  // namespace oom::offload
