#include "checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <optional>
#include <system_error>

#include "base/file.h"
#include "base/text.h"
#include "oom/error.h"

namespace oom::checkpoint {
namespace {

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kTemporary = ".tmp-";

struct Found {
  int64_t step;
  std::filesystem::path path;
};

struct Listing {
  std::vector<Found> complete_names;               // newest first; whether they are good is yet to be seen
  std::vector<std::filesystem::path> temporary;  // by name
};

std::optional<int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc{} || end != name.data() + name.size() || step < 0 || name.front() == '-') return std::nullopt;
  return step;
}

Listing list(const std::filesystem::path& folder) {
  Listing listing;
  std::error_code error;
  if (!std::filesystem::exists(folder, error)) return listing;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (const auto step = step_of(name)) {
      listing.complete_names.push_back({*step, entry->path()});
    } else if (name.starts_with(kPrefix) && name.find(kTemporary) != std::string::npos) {
      listing.temporary.push_back(entry->path());
    }
  }
  if (error) throw FileError(cat(folder.string(), ": folder cannot be listed: ", error.message()));
  std::sort(listing.complete_names.begin(), listing.complete_names.end(), [](const Found& left, const Found& right) {
    return std::pair(left.step, left.path) > std::pair(right.step, right.path);
  });
  std::sort(listing.temporary.begin(), listing.temporary.end());
  return listing;
}

std::unique_ptr<CheckpointReader> open_good(const Found& found, Verify verify, int threads) {
  auto reader = std::make_unique<CheckpointReader>(found.path);
  if (reader->state().step != found.step)
    throw FileError(cat(found.path.string(), ": holds step ", reader->state().step, ", which is not what its name says"));
  if (verify == Verify::kContents) reader->verify(threads);
  return reader;
}

bool is_good(const Found& found) {
  try {
    open_good(found, Verify::kStructure, 1);
    return true;
  } catch (const FileError&) {
    return false;
  }
}

}  // namespace

std::string checkpoint_name(int64_t step) {
  char name[32];
  std::snprintf(name, sizeof name, "step-%06lld", static_cast<long long>(step));
  return name;
}

std::vector<std::filesystem::path> checkpoint_paths(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  for (const Found& found : list(folder).complete_names) paths.push_back(found.path);
  return paths;
}

NewestCheckpoint newest_complete(const std::filesystem::path& folder, Verify verify, int threads) {
  NewestCheckpoint result;
  const Listing listing = list(folder);
  for (const auto& path : listing.temporary) result.skipped.push_back({path, "half-written: its writing or removal was interrupted"});
  for (const Found& found : listing.complete_names) {
    try {
      result.reader = open_good(found, verify, threads);
      break;
    } catch (const FileError& error) {
      result.skipped.push_back({found.path, error.what()});
    }
  }
  return result;
}

std::vector<std::filesystem::path> prune(const std::filesystem::path& folder, int64_t keep, const std::vector<std::string>& protect) {
  std::vector<std::filesystem::path> removed;
  int64_t kept = 0;
  for (const Found& found : list(folder).complete_names) {
    const std::string name = found.path.filename().string();
    const bool is_protected = std::find(protect.begin(), protect.end(), name) != protect.end();
    if (kept < std::max<int64_t>(keep, 1)) {
      kept += is_good(found);
      continue;
    }
    if (is_protected || !is_good(found)) continue;
    // Renamed first: a removal that is interrupted leaves no folder that looks like a damaged checkpoint.
    const std::filesystem::path doomed = found.path.string() + std::string(kTemporary) + "removed";
    std::error_code error;
    std::filesystem::rename(found.path, doomed, error);
    if (!error) std::filesystem::remove_all(doomed, error);
    if (error) throw FileError(cat(found.path.string(), ": old checkpoint cannot be removed: ", error.message()));
    removed.push_back(found.path);
  }
  return removed;
}

void remove_abandoned(const std::filesystem::path& folder) {
  for (const auto& path : list(folder).temporary) {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    if (error) throw FileError(cat(path.string(), ": what an interrupted checkpoint left cannot be removed: ", error.message()));
  }
}

int64_t checkpoint_bytes(std::span<const TensorInfo> tensors) {
  constexpr int64_t kTextBytes = int64_t{8} << 20;  // state, texts (names of up to 20,000 source tensors), manifest
  int64_t total = kTextBytes;
  for (const TensorInfo& tensor : tensors) {
    const int64_t stream_bytes = tensor.elements() * 4;
    const int64_t header_bytes = 160 + static_cast<int64_t>(tensor.name.size());
    const int64_t block_digests_bytes = 24 * (stream_bytes / kBlockBytes + 1);
    total += 3 * (stream_bytes + header_bytes + block_digests_bytes);
  }
  return total;
}

void require_free_disk(const std::filesystem::path& path, int64_t needed_bytes, const std::string& what) {
  const int64_t free_bytes = base::free_disk_bytes(path);
  if (free_bytes < needed_bytes)
    throw BudgetError(cat(path.string(), ": the disk has too little room for ", what, ": ", base::format_bytes(needed_bytes), " needed, ",
                          base::format_bytes(free_bytes), " free"));
}

}  // namespace oom::checkpoint
