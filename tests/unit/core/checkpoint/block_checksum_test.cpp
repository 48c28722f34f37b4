#include "checkpoint/block_checksum.h"

#include <gtest/gtest.h>

#include <string>

namespace oom::checkpoint {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

TEST(BlockChecksum, IsXxh3) {
  // From xxHash's own sanity tests: the empty input, seed 0.
  EXPECT_EQ(checksum({}), 0x2D06800538D394C2u);
}

TEST(BlockChecksum, PiecesMakeNoDifference) {
  std::string text(1000, '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 31);
  for (const size_t length : {0, 1, 99, 100, 101, 1000}) {
    std::vector<uint64_t> expected;
    for (size_t at = 0; at < length; at += 100) expected.push_back(checksum(bytes_of(text).subspan(at, std::min<size_t>(100, length - at))));
    for (const size_t piece : {1, 7, 100, 333, 1000}) {
      BlockChecksums checksums(100);
      for (size_t at = 0; at < length; at += piece) checksums.feed(bytes_of(text).subspan(at, std::min(piece, length - at)));
      EXPECT_EQ(checksums.bytes(), static_cast<int64_t>(length));
      EXPECT_EQ(checksums.finish(), expected) << length << " in pieces of " << piece;
    }
  }
}

}  // namespace
}  // namespace oom::checkpoint
