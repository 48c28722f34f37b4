/// Reads tensors, or ranges of them, out of one safetensors file. Immutable; safe from several threads.
#pragma once

#include <unordered_map>

#include "base/file.h"
#include "checkpoint/safetensors_header.h"

namespace oom::checkpoint {

class SafetensorsReader {
 public:
  /// Reads and checks the header only.
  explicit SafetensorsReader(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const base::File& file() const { return file_; }
  const SafetensorsHeader& header() const { return header_; }
  /// Returns null when there is no such tensor.
  const TensorPlace* find(std::string_view name) const;
  /// Fills `out` with a tensor's bytes from `byte_begin` on.
  void read(const TensorPlace& tensor, int64_t byte_begin, std::span<std::byte> out) const;

 private:
  base::File file_;
  SafetensorsHeader header_;
  std::unordered_map<std::string_view, const TensorPlace*> by_name_;
};

}  // namespace oom::checkpoint
