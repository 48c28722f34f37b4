/// Training checkpoints of a run: the engine's state written by parameter, and read back under any plan.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "checkpoint/checkpoint_reader.h"
#include "runtime/engine.h"
#include "runtime/session.h"

namespace oom::runtime {

/// The newest complete checkpoint of a run's folder; null when there is none. Damaged and half-written ones are named in the log and skipped.
std::unique_ptr<checkpoint::CheckpointReader> open_newest_checkpoint(const std::filesystem::path& checkpoints);

/// Fills the engine's state, working weights included. Throws one FileError with every parameter that is missing, misshapen or unknown.
void restore_checkpoint(const checkpoint::CheckpointReader& from, const ModelDescription& model, Engine& engine);

/// Texts that a checkpoint holds beside the state, by name.
using CheckpointTexts = std::map<std::string, std::string>;

/// Writes the state after `step` steps and `samples` samples, then removes old checkpoints beyond checkpoint.keep newest and checkpoint.keep_best best,
/// and marks the best. The engine is drained.
std::filesystem::path save_checkpoint(const std::filesystem::path& checkpoints, Session& session, Engine& engine, int64_t step, int64_t samples, const CheckpointTexts& texts);

}  // namespace oom::runtime
