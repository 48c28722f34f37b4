/// Which tokens count as targets: PREFIX.mask beside PREFIX.bin and PREFIX.idx. A token that does not count is still read as input.
///
/// The file, little-endian: 8 bytes "OOMMASK\0", uint64 version (1), uint64 tokens n, then (n + 7) / 8 bytes of bits. Bit i % 8 (the lowest is 0)
/// of byte i / 8 is 1 when token i of the stream counts; bits beyond n are 0. Sizes are checked when opened; bits are read as they are needed.
#pragma once

#include <memory>
#include <string_view>

#include "base/file.h"

namespace oom::data {

inline constexpr std::string_view kMaskMagic{"OOMMASK\0", 8};
inline constexpr int64_t kMaskHeaderBytes = 8 + 8 + 8;

/// Immutable; every method is const and safe from several threads.
class TargetMask {
 public:
  /// Opens `path` for a stream of `token_count` tokens. Throws FileError.
  TargetMask(const std::filesystem::path& path, int64_t token_count);
  /// The mask of the token files `prefix` (.bin or .idx at its end is overlooked); null when there is none.
  static std::unique_ptr<const TargetMask> find(const std::filesystem::path& prefix, int64_t token_count);

  const std::filesystem::path& path() const { return file_.path(); }
  /// Replaces targets that do not count by `ignored`; `targets` are the tokens from `begin` on. Returns how many it replaced.
  int64_t apply(int64_t begin, std::span<int32_t> targets, int32_t ignored) const;
  /// Tokens of the stream that count. Reads the whole file.
  int64_t count() const;

 private:
  base::File file_;
  int64_t token_count_;
};

}  // namespace oom::data
