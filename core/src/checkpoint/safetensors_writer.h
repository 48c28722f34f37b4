/// Writes one safetensors file whose tensors are known beforehand: the header first, then their bytes in order, in pieces of any size.
/// Nothing is held in memory. One thread.
#pragma once

#include <functional>
#include <memory>

#include "base/file.h"
#include "checkpoint/safetensors_header.h"

namespace oom::checkpoint {

class SafetensorsWriter {
 public:
  /// Called with every byte that goes into the file, in order; for checksums.
  using Observer = std::function<void(std::span<const std::byte>)>;

  /// Makes the file, which must not exist, and writes its header.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorInfo> tensors, const std::map<std::string, std::string>& metadata,
                    Observer observer = {});

  /// Appends bytes of tensor `name`. Tensors come in the order given; more bytes than a tensor has, or another tensor's turn, is an Error.
  void append(std::string_view name, std::span<const std::byte> bytes);
  /// Checks that every tensor is complete and waits until the file is on the disk.
  void finish();

 private:
  void skip_complete();

  base::File file_;
  std::vector<TensorInfo> tensors_;
  Observer observer_;
  size_t current_ = 0;        // tensor whose turn it is
  int64_t current_bytes_ = 0;  // appended of it
};

}  // namespace oom::checkpoint
