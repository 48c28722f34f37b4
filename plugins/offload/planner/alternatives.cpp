#include "alternatives.h"

#include <algorithm>

#include "partition.h"

namespace oom::offload {
namespace {

using Changes = std::vector<std::pair<const char*, std::string>>;

// Whole sequences that fill a GPU: what attention needs beside its inputs is theirs alone.
std::string batch(int64_t length) {
  constexpr int64_t kFull = 32768;
  return cat((kFull + length - 1) / length * length);
}

std::vector<Changes> ladder(const ModelDescription& model, int64_t tokens, int64_t length) {
  const auto with = [](Changes changes, const Changes& more) {
    changes.insert(changes.end(), more.begin(), more.end());
    return changes;
  };
  const Changes slices{{"moe_chunk", cat(slice(tokens, 16))}, {"gdn_chunk", cat(slice(tokens, 8))}};
  // A window's attention is cut by sequence; without one the key is refused.
  const auto windowed = [&](Changes changes, int64_t count) {
    return mixes(model, "sliding_attention") ? with(std::move(changes), {{"attention_chunk", cat(slice(length, count))}}) : changes;
  };
  const Changes grouped = windowed(with(slices, {{"attention_head_group", "4"}, {"sub_batch", "1"}}), 8);
  const Changes smallest =
      windowed({{"moe_chunk", cat(slice(tokens, 64))}, {"gdn_chunk", cat(slice(tokens, 32))}, {"attention_head_group", "1"}, {"sub_batch", "1"}, {"buffers", "2"}}, 32);
  const Changes keep{{"keep_attention", "\"all\""}};
  const Changes batches{{"attention_batch", batch(length)}};
  return {batches,
          with(batches, keep),
          {{"keep_boundaries", "\"1+1\""}},
          {{"keep_boundaries", "\"3+1\""}},
          {{"keep_boundaries", "\"5+1\""}},
          slices,
          with(slices, {{"sub_batch", "1"}}),
          grouped,
          with(grouped, keep),
          with(with(grouped, keep), {{"keep_boundaries", "\"1+1\""}}),
          with(with(grouped, keep), {{"keep_boundaries", "\"3+1\""}}),
          with(with(grouped, keep), {{"keep_boundaries", "\"5+1\""}}),
          smallest,
          with(smallest, keep),
          with(smallest, {{"keep_boundaries", "\"1+1\""}, {"regenerate_cap", "1"}}),
          with(with(smallest, keep), {{"keep_boundaries", "\"3+1\""}, {"regenerate_cap", "1"}}),
          with(smallest, {{"keep_boundaries", "\"3+1\""}, {"regenerate_cap", "1"}}),
          with(with(smallest, keep), {{"keep_boundaries", "\"3+1\""}, {"regenerate_cap", "1"}, {"buffers", "1"}})};
}

}  // namespace

std::vector<std::map<std::string, std::string>> alternatives(const SettingsTable& given, const ModelDescription& model, const Plan& plan) {
  const std::map<std::string, std::string>& resolved = plan.settings.at("offload");
  std::vector<std::map<std::string, std::string>> tables;
  for (const Changes& changes : ladder(model, plan.tokens_per_rank(), plan.workload.sequence_length)) {
    Plan changed = plan;
    for (const auto& [key, value] : changes) {
      // What is left alone is resolved anew, because it depends on what changes.
      if (given.is_auto(key)) changed.settings["offload"][key] = value;
    }
    const bool states_cap = std::any_of(changes.begin(), changes.end(), [](const auto& change) { return std::string_view(change.first) == "regenerate_cap"; });
    if (given.is_auto("regenerate_cap") && !states_cap) changed.settings["offload"]["regenerate_cap"] = "\"auto\"";
    try {
      std::map<std::string, std::string> table = settings_of(policy_of(model, changed));
      if (table != resolved && std::find(tables.begin(), tables.end(), table) == tables.end()) tables.push_back(std::move(table));
    } catch (const ConfigError&) {
      // Not for this model: fewer layers than a set of boundaries needs.
    }
  }
  return tables;
}

}  // namespace oom::offload
