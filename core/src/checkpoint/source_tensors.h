/// What a model's own weights files hold: names, types and shapes. A checkpoint keeps it as a text, so that export writes the layout and the types
/// that the model came in, wherever its folder is by then.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "checkpoint/hf_directory.h"

namespace oom::checkpoint {

/// The text's name in a checkpoint.
inline constexpr const char* kSourceTensorsName = "source_tensors.json";

class SourceTensors {
 public:
  SourceTensors() = default;
  explicit SourceTensors(const HfDirectory& files);
  /// Reads what `format` wrote; anything else is a FileError that names `file`.
  static SourceTensors parse(const std::string& text, const std::filesystem::path& file);
  std::string format() const;

  bool empty() const { return tensors_.empty(); }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  /// Returns null when there is no such tensor.
  const TensorInfo* find(const std::string& name) const;
  /// The type that most bytes have; kF32 when empty.
  Dtype main_dtype() const;

 private:
  explicit SourceTensors(std::vector<TensorInfo> tensors);
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string, size_t> index_;
};

}  // namespace oom::checkpoint
