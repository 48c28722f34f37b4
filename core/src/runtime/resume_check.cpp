#include "runtime/resume_check.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "config/differences.h"
#include "config/faults.h"
#include "oom/log.h"

namespace oom::runtime {
namespace {

constexpr std::string_view kComparedTables[] = {"model", "data", "train", "precision", "eval"};

bool is_any(const config::SettingDifference& setting, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), cat(setting.table, ".", setting.key)) != names.end();
}

// The number of steps is there to be raised, weights come from the checkpoint wherever the model's folder is, and the batch is judged by the samples read.
bool may_change(const config::SettingDifference& setting) {
  return is_any(setting, {"train.steps", "train.drain", "train.global_batch", "model.path", "model.weights", "data.allow_change", "eval.every"});
}

// Settings without which the number of samples read says nothing about which they were.
bool sets_position(const config::SettingDifference& setting) { return is_any(setting, {"data.sequence_length", "data.shuffle_seed"}); }

std::string corpus_difference(const checkpoint::CheckpointReader& from, const data::SampleStream& samples) {
  if (!from.has_text(kDataName)) return "";
  const nlohmann::json before = nlohmann::json::parse(from.text(kDataName), nullptr, /*allow_exceptions=*/false);
  const int64_t tokens = before.is_object() ? before.value("tokens", int64_t{-1}) : -1, count = before.is_object() ? before.value("samples", int64_t{-1}) : -1;
  if (tokens == samples.source().token_count() && count == samples.sample_count()) return "";
  return cat(base::group_digits(samples.source().token_count()), " tokens, ", base::group_digits(samples.sample_count()), " samples an epoch; the checkpoint's had ", base::group_digits(tokens),
             " tokens, ", base::group_digits(count), " samples");
}

}  // namespace

std::string format_data_size(const data::SampleStream& samples) {
  return nlohmann::ordered_json{{"samples", samples.sample_count()}, {"tokens", samples.source().token_count()}}.dump() + "\n";
}

void check_continues(const checkpoint::CheckpointReader& from, const config::Config& config, const ModelDescription& model, const data::SampleStream& samples) {
  const checkpoint::TrainingState& state = from.state();
  if (state.samples != state.step * config.train().global_batch) {
    throw ConfigError(cat(config.where("train", "global_batch"), ": ", from.folder().string(), " has read ", state.samples, " samples in ", state.step, " steps; resume with train.global_batch=",
                          state.step > 0 ? state.samples / state.step : 0));
  }
  if (from.has_text("config.json") && nlohmann::json::parse(from.text("config.json"), nullptr, false) != nlohmann::json::parse(model.config_json, nullptr, false)) {
    throw FileError(cat(config.model().path, "/config.json: differs from the one in ", from.folder().string(), "; resume with the model that the checkpoint is of"));
  }
  const bool allowed = config.data().allow_change;
  config::Faults faults;
  const auto moves = [&](const std::string& table, const std::string& key, const std::string& what) {
    if (allowed) {
      log_warn("resume: ", table, ".", key, ": ", what, "; samples may come twice or not at all (data.allow_change)");
    } else {
      faults.add(config.where(table, key), ": ", what, ": samples would come twice or not at all; cure: what the checkpoint was made with, or data.allow_change=true");
    }
  };
  for (const config::SettingDifference& setting : config::differences(config, state.config, kComparedTables)) {
    if (may_change(setting)) continue;
    if (sets_position(setting)) {
      moves(setting.table, setting.key, cat(setting.now, " now, ", setting.before, " in ", from.folder().string()));
    } else {
      log_warn("resume: ", setting.table, ".", setting.key, ": ", setting.now, " now, ", setting.before, " in ", from.folder().string());
    }
  }
  // With another sequence length or order the number of samples differs anyway.
  if (const std::string difference = corpus_difference(from, samples); !difference.empty() && faults.empty()) moves("data", "path", difference);
  faults.raise_if_any();
}

}  // namespace oom::runtime
