/// What a run that is resumed must have in common with the checkpoint it goes on from.
#pragma once

#include <string>

#include "checkpoint/checkpoint_reader.h"
#include "config/config.h"
#include "data/sample_stream.h"
#include "oom/model.h"

namespace oom::runtime {

/// The text file of a checkpoint that says what was trained on: {"samples": 1000, "tokens": 4096123}, samples being those of an epoch.
inline constexpr const char* kDataName = "data.json";
std::string format_data_size(const data::SampleStream& samples);

/// Goes on with the model and the samples that made the checkpoint: anything else would train another model, or read samples twice, unnoticed.
/// Throws FileError for another config.json; ConfigError for another global batch and, unless data.allow_change, for another sequence length,
/// order or corpus. Other settings that change what is computed are logged, each with both values.
void check_continues(const checkpoint::CheckpointReader& from, const config::Config& config, const ModelDescription& model, const data::SampleStream& samples);

}  // namespace oom::runtime
