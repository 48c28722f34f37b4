#include "checkpoint/checkpoint_writer.h"

#include <stdio.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "checkpoint/block_checksum.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/safetensors_writer.h"
#include "checkpoint/tensor_files.h"
#include "oom/error.h"

namespace oom::checkpoint {
namespace {

std::string tensor_file_name(StateStream stream, size_t index) {
  char name[64];
  std::snprintf(name, sizeof name, "%s-%05zu.safetensors", stream_name(stream), index + 1);
  return name;
}

void require_room(const std::filesystem::path& folder, int64_t needed_bytes) {
  const int64_t free_bytes = base::free_disk_bytes(folder);
  if (free_bytes < needed_bytes)
    throw FileError(cat(folder.string(), ": a checkpoint needs ", needed_bytes, " bytes, but the disk has ", free_bytes,
                        " free. Free some, keep fewer checkpoints ([checkpoint] keep), or give another output.dir"));
}

}  // namespace

const char* stream_name(StateStream stream) {
  switch (stream) {
    case StateStream::kMaster: return "master";
    case StateStream::kFirstMoment: return "m";
    case StateStream::kSecondMoment: return "v";
  }
  return "unknown";
}

CheckpointWriter::CheckpointWriter(const std::filesystem::path& folder, int64_t step, std::vector<TensorInfo> tensors, CheckpointWriteOptions options)
    : folder_(folder), step_(step), tensors_(std::move(tensors)), options_(std::move(options)) {
  OOM_CHECK(step >= 0, step);
  for (const TensorInfo& tensor : tensors_) OOM_CHECK(tensor.dtype == Dtype::kF32, "tensor ", tensor.name, " is ", dtype_name(tensor.dtype));
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error) throw FileError(cat(folder_.string(), ": folder cannot be made: ", error.message()));
  remove_abandoned(folder_);
  require_room(folder_, checkpoint_bytes(tensors_));
  const auto temporary = folder_ / cat(checkpoint_name(step_), ".tmp-", ::getpid());
  std::filesystem::create_directory(temporary, error);
  if (error) throw FileError(cat(temporary.string(), ": folder cannot be made: ", error.message()));
  temporary_ = temporary;
  manifest_.step = step_;
  manifest_.block_bytes = options_.block_bytes;
}

CheckpointWriter::~CheckpointWriter() {
  if (committed_) return;
  std::error_code ignored;
  std::filesystem::remove_all(temporary_, ignored);
}

void CheckpointWriter::write_tensors(const StateSource& source) {
  OOM_CHECK(!tensors_written_, "tensors are written once");
  const auto files = spread_over_files(tensors_, options_.file_bytes);
  const size_t streams = std::size(kStateStreams);
  std::vector<ManifestFile> written(files.size() * streams);
  for_each_parallel(written.size(), options_.threads, [&](size_t i) {
    const StateStream stream = kStateStreams[i % streams];
    const auto [first, end] = files[i / streams];
    const auto own = std::span<const TensorInfo>(tensors_).subspan(first, end - first);
    const std::string name = tensor_file_name(stream, i / streams);
    BlockChecksums checksums(options_.block_bytes);
    SafetensorsWriter writer(temporary_ / name, {own.begin(), own.end()}, {{"format", "pt"}, {"stream", stream_name(stream)}},
                             [&](std::span<const std::byte> bytes) { checksums.feed(bytes); });
    for (const TensorInfo& tensor : own)
      source(tensor, stream, [&](std::span<const float> values) { writer.append(tensor.name, std::as_bytes(values)); });
    writer.finish();
    const int64_t bytes = checksums.bytes();
    written[i] = {name, bytes, checksums.finish()};
  });
  manifest_.files.insert(manifest_.files.end(), written.begin(), written.end());
  tensors_written_ = true;
  announce(CommitPhase::kTensorsWritten);
}

void CheckpointWriter::write_text(const std::string& name, const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  BlockChecksums checksums(options_.block_bytes);
  checksums.feed(bytes);
  base::write_text_file(temporary_ / name, text);
  manifest_.files.push_back({name, static_cast<int64_t>(text.size()), checksums.finish()});
}

std::filesystem::path CheckpointWriter::commit(const TrainingState& state) {
  OOM_CHECK(tensors_written_ && !committed_, "commit comes once, after write_tensors");
  OOM_CHECK_EQ(state.step, step_);
  write_text(kStateName, format_training_state(state));
  announce(CommitPhase::kStateWritten);
  base::write_text_file(temporary_ / kManifestName, format_manifest(manifest_));
  announce(CommitPhase::kManifestWritten);
  base::sync_folder(temporary_);
  announce(CommitPhase::kFolderSynced);
  const auto place = folder_ / checkpoint_name(step_);
  put_in_place(place);
  announce(CommitPhase::kRenamed);
  base::sync_folder(folder_);
  announce(CommitPhase::kParentSynced);
  return place;
}

void CheckpointWriter::put_in_place(const std::filesystem::path& place) {
  const auto refuse = [&](int error_number) {
    throw FileError(cat(place.string(), ": cannot be put in place: ", base::system_error_text(error_number)));
  };
  if (::rename(temporary_.c_str(), place.c_str()) == 0) {
    committed_ = true;
    return;
  }
  if (errno != ENOTEMPTY && errno != EEXIST) refuse(errno);
  // A checkpoint of this step is there. Exchanged, there is a good one at every moment.
  if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, place.c_str(), RENAME_EXCHANGE) == 0) {
    committed_ = true;
    base::sync_folder(folder_);
  } else {
    const std::filesystem::path old = place.string() + ".tmp-old";
    if (::rename(place.c_str(), old.c_str()) != 0 || ::rename(temporary_.c_str(), place.c_str()) != 0) refuse(errno);
    committed_ = true;
    base::sync_folder(folder_);
    temporary_ = old;
  }
  std::error_code ignored;  // what stays behind is removed by the next writer
  std::filesystem::remove_all(temporary_, ignored);
}

void CheckpointWriter::announce(CommitPhase phase) const {
  if (options_.on_phase) options_.on_phase(phase);
}

}  // namespace oom::checkpoint
