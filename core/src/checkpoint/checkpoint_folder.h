/// The folder of a run's checkpoints: which is the newest good one, which are to go, and what room they need.
#pragma once

#include <memory>
#include <string>

#include "checkpoint/checkpoint_reader.h"

namespace oom::checkpoint {

/// Returns "step-000100".
std::string checkpoint_name(int64_t step);

/// Returns the folders that have a checkpoint's name, newest first, good or damaged. No such folder: none.
std::vector<std::filesystem::path> checkpoint_paths(const std::filesystem::path& folder);

enum class Verify {
  kStructure,  ///< manifest, sizes, headers and state
  kContents,   ///< and every byte against its checksum
};

struct SkippedCheckpoint {
  std::filesystem::path path;
  std::string why;
};

struct NewestCheckpoint {
  std::unique_ptr<CheckpointReader> reader;  ///< null when there is no good one
  std::vector<SkippedCheckpoint> skipped;    ///< newer ones that are damaged, and half-written ones
};

/// Finds the newest checkpoint of `folder` that is complete and undamaged, reading with `threads` threads. No such folder: none.
/// kContents reads everything once before anything is loaded. With kStructure a damaged block shows itself, as a FileError, while loading.
NewestCheckpoint newest_complete(const std::filesystem::path& folder, Verify verify = Verify::kContents, int threads = 4);

/// Removes old checkpoints so that the newest `keep` (at least 1) complete ones stay; returns what was removed. Damaged ones neither count
/// nor are removed; nor are those named in `protect` ("step-000100"), which do not count either when they are older than the kept. Call it
/// after a new one is in place.
std::vector<std::filesystem::path> prune(const std::filesystem::path& folder, int64_t keep, const std::vector<std::string>& protect = {});

/// Removes what interrupted writers and removals left. Only while no writer is at work in `folder`.
void remove_abandoned(const std::filesystem::path& folder);

/// Bytes that a checkpoint of these parameters takes on the disk.
int64_t checkpoint_bytes(std::span<const TensorInfo> tensors);

/// Throws BudgetError, with numbers, when the disk under `path` (which need not exist yet) has fewer than `needed_bytes` free.
/// `what` names them: "3 checkpoints of 391 GiB".
void require_free_disk(const std::filesystem::path& path, int64_t needed_bytes, const std::string& what);

}  // namespace oom::checkpoint
