/// A model in Hugging Face's form: a folder with config.json and one or many safetensors files.
///
/// Tensors are read by name in ranges, whatever file they lie in; nothing is mapped or kept, and what has been read leaves the kernel's
/// cache again, so that opening a 250 GB model costs no memory. Immutable; safe from several threads.
#pragma once

#include <memory>
#include <optional>

#include "checkpoint/safetensors_reader.h"

namespace oom::checkpoint {

/// Returns the text of FOLDER/config.json; does not look at weights (weights = "random" has none).
std::string read_model_config(const std::filesystem::path& folder);

class HfDirectory {
 public:
  /// Opens the weights: the files of model.safetensors.index.json, or model.safetensors, or else every *.safetensors in the folder.
  /// Throws FileError: no files, an index that names files or tensors that are not there, a tensor in two files.
  explicit HfDirectory(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  /// Returns every tensor, ordered by name.
  const std::vector<const TensorPlace*>& tensors() const { return tensors_; }
  /// Returns null when there is no such tensor.
  const TensorPlace* find(std::string_view name) const;
  /// As find, but an absent tensor is a FileError that names it and the nearest name there is.
  const TensorPlace& get(std::string_view name) const;
  /// Returns the file that holds a tensor.
  const std::filesystem::path& file_of(std::string_view name) const;

  /// Fills `out` with a tensor's bytes from `byte_begin` on, as stored.
  void read_bytes(std::string_view name, int64_t byte_begin, std::span<std::byte> out) const;
  /// Fills `out` with elements from `element_begin` on (row r of a matrix [rows, columns] begins at r * columns), converted exactly from
  /// BF16, F16 or F32. A value that is not finite, or another dtype, is a FileError that names tensor and element.
  void read_float(std::string_view name, int64_t element_begin, std::span<float> out) const;

 private:
  struct Place {
    const SafetensorsReader* reader;
    const TensorPlace* tensor;
  };
  const Place& place_of(std::string_view name) const;
  void open_indexed(const std::filesystem::path& index);
  void open_files(const std::vector<std::filesystem::path>& files);

  std::filesystem::path folder_;
  std::vector<std::unique_ptr<SafetensorsReader>> readers_;
  std::vector<const TensorPlace*> tensors_;
  std::unordered_map<std::string_view, Place> by_name_;
};

}  // namespace oom::checkpoint
