/// Checksums of a file in blocks: XXH3 (64 bits, seed 0) of each block of `block_bytes`, the last one shorter.
/// With blocks, a range can be checked without reading the rest of its file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace oom::checkpoint {

/// Returns XXH3-64 of `bytes`.
uint64_t checksum(std::span<const std::byte> bytes);
/// The same of a text, in 16 hexadecimal digits.
std::string checksum_text(std::string_view text);

/// Takes a file's bytes in order, in pieces of any size.
class BlockChecksums {
 public:
  explicit BlockChecksums(int64_t block_bytes);
  BlockChecksums(BlockChecksums&&) noexcept;
  ~BlockChecksums();

  void feed(std::span<const std::byte> bytes);
  int64_t bytes() const { return bytes_; }
  /// Ends the file and returns its blocks' checksums; an empty file has none.
  std::vector<uint64_t> finish();

 private:
  struct State;
  int64_t block_bytes_;
  int64_t bytes_ = 0;
  std::unique_ptr<State> state_;
  std::vector<uint64_t> blocks_;
};

}  // namespace oom::checkpoint
