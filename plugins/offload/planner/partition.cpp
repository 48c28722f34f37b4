#include "partition.h"

#include <algorithm>
#include <limits>
#include <tuple>

namespace oom::offload {
namespace {

constexpr int64_t kMostSlices = 64;

// Halves of `tokens` down to one slice of kMostSlices.
std::vector<int64_t> slices_of(int64_t tokens) {
  std::vector<int64_t> sizes{tokens};
  for (int64_t slices = 2; slices <= kMostSlices; slices *= 2) {
    const int64_t size = slice(tokens, slices);
    if (size < sizes.back()) sizes.push_back(size);
  }
  return sizes;
}

// Whole sequences, halved down to one.
std::vector<int64_t> batches_of(int64_t sequences) {
  std::vector<int64_t> sizes{sequences};
  while (sizes.back() > 1) sizes.push_back((sizes.back() + 1) / 2);
  return sizes;
}

bool has_attention(const ModelDescription& model) { return std::any_of(model.layers.begin(), model.layers.end(), attends); }

auto sizes_of(const Plan& plan, const Policy& policy) {
  const int64_t length = plan.workload.sequence_length, tokens = policy.sub_batch * length;
  return std::tuple(policy.head_group, std::min(policy.attention_chunk, length), std::min(policy.gdn_chunk, length), std::min(policy.moe_chunk, tokens), std::min(policy.attention_batch, tokens),
                    policy.sub_batch);
}

// What cuts attention that the plan retains is no policy for it.
void erase_impossible(const ModelDescription& model, const Plan& plan, std::vector<Policy>& list) {
  if (plan.retained_attention.empty()) return;
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

// A size that may be chosen, and its values from whole to small.
struct Axis {
  int64_t Policy::*size;
  std::vector<int64_t> sizes;
};

std::vector<Axis> axes_of(const SettingsTable& given, const ModelDescription& model, const Plan& plan, const Policy& whole, const Policy& policy) {
  const int64_t length = plan.workload.sequence_length;
  std::vector<Axis> axes;
  const auto add = [&](const char* key, int64_t Policy::*size, bool matters, std::vector<int64_t> sizes) {
    if (matters && given.is_auto(key)) axes.push_back({size, std::move(sizes)});
  };
  std::vector<int64_t> attended = batches_of(policy.sub_batch);
  for (int64_t& sequences : attended) sequences *= length;
  add("moe_chunk", &Policy::moe_chunk, true, slices_of(policy.sub_batch * length));
  add("gdn_chunk", &Policy::gdn_chunk, mixes(model, "linear_attention"), slices_of(length));
  add("attention_chunk", &Policy::attention_chunk, mixes(model, "sliding_attention"), slices_of(length));
  add("attention_head_group", &Policy::head_group, has_attention(model), {0, 8, 4, 2, 1});
  add("attention_batch", &Policy::attention_batch, has_attention(model), attended);
  add("sub_batch", &Policy::sub_batch, true, batches_of(whole.sub_batch));
  return axes;
}

}  // namespace

int64_t slice(int64_t tokens, int64_t slices) {
  constexpr int64_t kLeast = 1024;  // of less, products are too small for a GPU
  return std::max(kLeast, (tokens / slices + kLeast - 1) / kLeast * kLeast);
}

bool cuts_alike(const Plan& plan, const Policy& one, const Policy& other) { return sizes_of(plan, one) == sizes_of(plan, other); }

std::vector<Policy> partitions(const SettingsTable& given, const ModelDescription& model, const Plan& plan, const Policy& whole) {
  const bool attends = has_attention(model), recurs = mixes(model, "linear_attention"), has_window = mixes(model, "sliding_attention");
  const int64_t sequences = plan.sequences_per_rank(), length = plan.workload.sequence_length;

  struct Cut {
    int64_t moe_slices, sequence_slices, head_group;  // of the tokens handled together, of a sequence; 0: whole
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
      if (given.is_auto("gdn_chunk") && cut.sequence_slices > 1 && recurs) policy.gdn_chunk = std::min(whole.gdn_chunk, slice(length, cut.sequence_slices));
      if (given.is_auto("attention_chunk") && cut.sequence_slices > 1 && has_window) policy.attention_chunk = std::min(whole.attention_chunk, slice(length, cut.sequence_slices));
      if (given.is_auto("attention_head_group") && attends) policy.head_group = cut.head_group;
      const bool known = std::any_of(list.begin(), list.end(), [&](const Policy& other) { return cuts_alike(plan, other, policy); });
      if (!known) list.push_back(policy);
    }
  }
  // Attention over a sequence at a time leaves its experts the whole batch.
  if (given.is_auto("attention_batch") && attends && sequences > 1) {
    Policy policy = whole;
    policy.attention_batch = length;
    if (given.is_auto("moe_chunk")) policy.moe_chunk = std::min(whole.moe_chunk, slice(sequences * length, 4));
    list.insert(list.begin() + 1, policy);
  }
  erase_impossible(model, plan, list);
  return list;
}

std::vector<Policy> neighbours(const SettingsTable& given, const ModelDescription& model, const Plan& plan, const Policy& whole, const Policy& policy) {
  std::vector<Policy> list;
  const auto extent = [](int64_t size) { return size == 0 ? std::numeric_limits<int64_t>::max() : size; };  // of heads 0 is all
  for (const Axis& axis : axes_of(given, model, plan, whole, policy)) {
    const int64_t now = std::min(extent(policy.*axis.size), extent(axis.sizes.front()));
    const auto at = std::find_if(axis.sizes.begin(), axis.sizes.end(), [&](int64_t size) { return extent(size) <= now; });
    const auto smaller = at != axis.sizes.end() && extent(*at) == now ? at + 1 : at;
    const auto offer = [&](int64_t size) {
      list.push_back(policy);
      list.back().*axis.size = size;
    };
    if (at != axis.sizes.begin()) offer(*(at - 1));
    if (smaller != axis.sizes.end()) offer(*smaller);
  }
  erase_impossible(model, plan, list);
  return list;
}

}  // namespace oom::offload
