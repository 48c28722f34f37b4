/// Reads a training checkpoint (checkpoint_writer.h): tensors by name and range, whatever ranks or plan wrote it.
/// Immutable; every method is const and safe from several threads.
#pragma once

#include <array>
#include <memory>
#include <string_view>
#include <unordered_map>

#include "checkpoint/checkpoint_writer.h"
#include "checkpoint/safetensors_reader.h"

namespace oom::checkpoint {

class CheckpointReader {
 public:
  /// Opens a checkpoint's folder. Checks the manifest, every file's presence and size, all headers and the state; tensors are checked when
  /// read, or all at once by verify. Throws FileError, naming file and cause.
  explicit CheckpointReader(const std::filesystem::path& folder);
  ~CheckpointReader();

  const std::filesystem::path& folder() const { return folder_; }
  const TrainingState& state() const { return state_; }
  /// Returns the parameters in the order in which they were written; each has all three streams.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  /// Returns null when there is no such tensor.
  const TensorInfo* find(std::string_view name) const;
  /// Bytes of all files.
  int64_t bytes() const;

  /// Fills `out` with elements of a tensor's stream from `element_begin` on, having compared the checksums of the blocks they lie in.
  /// An absent tensor or a damaged block is a FileError.
  void read(std::string_view name, StateStream stream, int64_t element_begin, std::span<float> out) const;
  bool has_text(std::string_view name) const;
  /// Returns a text file's content, checked; one that is absent is a FileError.
  std::string text(std::string_view name) const;
  /// Compares the checksums of every block of every file, on `threads` threads. Blocks found good are not compared again by partial reads.
  void verify(int threads) const;

 private:
  struct CheckedFile;
  struct Place {
    const CheckedFile* file;
    const TensorPlace* tensor;
  };
  void open_files();
  void collect_tensors();
  const CheckedFile* find_file(std::string_view name) const;
  void read_checked(const CheckedFile& file, int64_t offset, std::span<std::byte> out) const;
  void check_block(const CheckedFile& file, int64_t block, std::span<const std::byte> bytes) const;
  [[noreturn]] void refuse(const std::string& why) const;

  std::filesystem::path folder_;
  Manifest manifest_;
  TrainingState state_;
  std::vector<std::unique_ptr<CheckedFile>> files_;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string_view, std::array<Place, 3>> places_;
};

}  // namespace oom::checkpoint
