#include "memory/pinned_registry.h"

#include <gtest/gtest.h>

#include "memory/arena_layout.h"

namespace oom::memory {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

/// Only addresses: nothing is read or written there.
std::byte* address(int64_t value) { return reinterpret_cast<std::byte*>(value); }

void expect_division(std::byte* data, int64_t bytes, int threads) {
  int64_t covered = 0;
  for (const ByteRange& piece : registration_pieces(data, bytes, threads)) {
    EXPECT_EQ(piece.data, data + covered);
    EXPECT_GT(piece.bytes, 0);
    EXPECT_LE(piece.bytes, 64 * kGiB);
    EXPECT_TRUE(covered == 0 || reinterpret_cast<uintptr_t>(piece.data) % kHugePageBytes == 0);
    covered += piece.bytes;
  }
  EXPECT_EQ(covered, bytes);
}

TEST(RegistrationPieces, CoverTheRangeOnHugePageBorders) {
  for (int64_t start : {int64_t{1} << 40, (int64_t{1} << 40) + 4096, (int64_t{1} << 40) + kHugePageBytes - 4096})
    for (int64_t bytes : {int64_t{4096}, kGiB, 3 * kGiB + 4096, 200 * kGiB, 1500 * kGiB + 8192}) expect_division(address(start), bytes, 8);
}

TEST(RegistrationPieces, AreOneForAThreadUnlessSmallOrHuge) {
  EXPECT_EQ(registration_pieces(address(1 << 30), kGiB / 2, 8).size(), 1u);
  EXPECT_EQ(registration_pieces(address(1 << 30), 80 * kGiB, 8).size(), 8u);
  // One thread's range is one piece wherever it begins: no copy may cross a border.
  for (const int64_t past : {int64_t{0}, int64_t{4096}, kHugePageBytes - 4096}) {
    for (const int64_t bytes : {kGiB, kGiB + 4096, 2 * kGiB - 4096, 63 * kGiB}) EXPECT_EQ(registration_pieces(address((1 << 30) + past), bytes, 1).size(), 1u) << past << " " << bytes;
  }
  EXPECT_EQ(registration_pieces(address(1 << 30), 1024 * kGiB, 8).size(), 17u);
}

}  // namespace
}  // namespace oom::memory
