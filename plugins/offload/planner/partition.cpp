#include "partition.h"

#include <algorithm>
#include <tuple>

namespace oom::offload {
namespace {

constexpr int64_t kLeastTokens = 1024;  // of less, products are too small for a GPU

int64_t slice(int64_t tokens, int64_t slices) { return std::max(kLeastTokens, (tokens / slices + kLeastTokens - 1) / kLeastTokens * kLeastTokens); }

auto sizes_of(const Policy& policy) { return std::tuple(policy.head_group, policy.gdn_chunk, policy.moe_chunk, policy.attention_batch, policy.sub_batch); }

}  // namespace

std::vector<Policy> partitions(const SettingsTable& given, const ModelDescription& model, const Plan& plan, const Policy& whole) {
  const bool has_attention = std::any_of(model.layers.begin(), model.layers.end(), attends);
  const bool recurs = std::any_of(model.layers.begin(), model.layers.end(), [](const LayerSpec& layer) { return layer.mixer == "linear_attention"; });
  const int64_t sequences = plan.sequences_per_rank(), length = plan.workload.sequence_length;

  struct Cut {
    int64_t moe_slices, gdn_slices, head_group;  // of the tokens handled together; 0: whole
  };
  constexpr Cut kCuts[] = {{1, 1, 0}, {4, 1, 0}, {16, 1, 0}, {4, 4, 0}, {16, 8, 0}, {16, 8, 4}, {64, 32, 4}, {64, 32, 1}};
  std::vector<int64_t> batches{sequences};
  for (const int64_t batch : {sequences / 4, int64_t{1}}) {
    if (batch > 0 && batch < batches.back()) batches.push_back(batch);
  }
  std::vector<Policy> list;
  for (const int64_t batch : batches) {
    for (const Cut& cut : kCuts) {
      Policy policy = whole;
      const int64_t tokens = batch * length;
      if (given.is_auto("sub_batch")) policy.sub_batch = batch;
      if (given.is_auto("moe_chunk") && cut.moe_slices > 1) policy.moe_chunk = std::min(whole.moe_chunk, slice(tokens, cut.moe_slices));
      if (given.is_auto("gdn_chunk") && cut.gdn_slices > 1 && recurs) policy.gdn_chunk = std::min(whole.gdn_chunk, slice(length, cut.gdn_slices));
      if (given.is_auto("attention_head_group") && has_attention) policy.head_group = cut.head_group;
      const bool known = std::any_of(list.begin(), list.end(), [&](const Policy& other) { return sizes_of(other) == sizes_of(policy); });
      if (!known) list.push_back(policy);
    }
  }
  // Attention over a sequence at a time leaves its experts the whole batch.
  if (given.is_auto("attention_batch") && has_attention && sequences > 1) {
    Policy policy = whole;
    policy.attention_batch = length;
    if (given.is_auto("moe_chunk")) policy.moe_chunk = std::min(whole.moe_chunk, slice(sequences * length, 4));
    list.insert(list.begin() + 1, policy);
  }
  if (!plan.retained_attention.empty()) {
    // What cuts attention that the plan retains is no policy for it.
    std::erase_if(list, [&](const Policy& policy) {
      Plan changed = plan;
      changed.settings["offload"] = settings_of(policy);
      try {
        (void)policy_of(model, changed);
        return false;
      } catch (const ConfigError&) {
        return true;
      }
    });
  }
  return list;
}

}  // namespace oom::offload
