/// Writes a training checkpoint: FP32 master, m and v of every parameter tensor, in a layout that knows neither ranks nor plan.
///
/// The folder checkpoints/step-000100 holds
///   master-00001.safetensors ..., m-00001 ..., v-00001 ...   the three streams: same tensor names and shapes, any tool can read them
///   state.json                                               training_state.h
///   other texts, such as the model's config.json
///   manifest.json                                            every file with size and checksums (manifest.h), written last
/// It is built as step-000100.tmp-PID beside its place: files, then the manifest, each brought to the disk; the folder is brought to the
/// disk, renamed, and its parent brought to the disk. A process that dies at any moment leaves the older checkpoints as they were and at
/// most a .tmp- folder, which the next writer removes. State is read where it lies, piece by piece: there is no second copy.
///
/// One writer per checkpoints folder at a time. Order of calls: constructor, write_tensors, write_text as often as wanted, commit.
#pragma once

#include <functional>

#include "checkpoint/manifest.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/training_state.h"

namespace oom::checkpoint {

/// What is kept of each parameter; the order is that of the enumerators.
enum class StateStream { kMaster, kFirstMoment, kSecondMoment };
inline constexpr StateStream kStateStreams[] = {StateStream::kMaster, StateStream::kFirstMoment, StateStream::kSecondMoment};
/// "master", "m", "v".
const char* stream_name(StateStream stream);

inline constexpr const char* kStateName = "state.json";

/// Moments at which a checkpoint's writing can be observed, in order.
enum class CommitPhase { kTensorsWritten, kStateWritten, kManifestWritten, kFolderSynced, kRenamed, kParentSynced };

struct CheckpointWriteOptions {
  int64_t file_bytes = int64_t{8} << 30;  ///< bound of a tensor file; a larger tensor has a file of its own
  int64_t block_bytes = kBlockBytes;      ///< of checksums
  int threads = 4;                        ///< files written at once
  std::function<void(CommitPhase)> on_phase;
};

/// Takes the next elements of a tensor's stream.
using FloatSink = std::function<void(std::span<const float>)>;
/// Gives all elements of one stream of `tensor`, row-major, to `sink`, in pieces of any size. Called once per tensor and stream, from up to
/// CheckpointWriteOptions::threads threads at once. What it throws ends the writing and is thrown on.
using StateSource = std::function<void(const TensorInfo& tensor, StateStream stream, const FloatSink& sink)>;

class CheckpointWriter {
 public:
  /// Makes `folder` (".../checkpoints") when absent, removes what interrupted writers left in it, checks that the disk has room and makes
  /// the temporary folder. `tensors` are the canonical parameters; all must be kF32. Throws FileError.
  CheckpointWriter(const std::filesystem::path& folder, int64_t step, std::vector<TensorInfo> tensors, CheckpointWriteOptions options = {});
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  /// Without commit removes everything that was written.
  ~CheckpointWriter();

  void write_tensors(const StateSource& source);
  /// Adds a text file, such as "config.json" of the model, which `oom export` needs.
  void write_text(const std::string& name, const std::string& text);
  /// Completes the checkpoint and puts it in place; `state.step` is the constructor's step. Replaces one of the same step, atomically
  /// where the file system can exchange folders. Returns its path.
  std::filesystem::path commit(const TrainingState& state);

 private:
  void put_in_place(const std::filesystem::path& place);
  void announce(CommitPhase phase) const;

  std::filesystem::path folder_;
  int64_t step_;
  std::vector<TensorInfo> tensors_;
  CheckpointWriteOptions options_;
  std::filesystem::path temporary_;
  Manifest manifest_;
  bool tensors_written_ = false;
  bool committed_ = false;
};

}  // namespace oom::checkpoint
