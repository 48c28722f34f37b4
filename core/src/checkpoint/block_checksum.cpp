#include "checkpoint/block_checksum.h"

#include <algorithm>
#include <cstdio>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "oom/error.h"

namespace oom::checkpoint {

uint64_t checksum(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::string checksum_text(std::string_view text) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(checksum(std::as_bytes(std::span(text)))));
  return digits;
}

struct BlockChecksums::State {
  XXH3_state_t xxh3;
};

BlockChecksums::BlockChecksums(int64_t block_bytes) : block_bytes_(block_bytes), state_(std::make_unique<State>()) {
  OOM_CHECK_GT(block_bytes, 0);
  XXH3_64bits_reset(&state_->xxh3);
}

BlockChecksums::BlockChecksums(BlockChecksums&&) noexcept = default;
BlockChecksums::~BlockChecksums() = default;

void BlockChecksums::feed(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const int64_t room = block_bytes_ - bytes_ % block_bytes_;
    const auto piece = bytes.first(std::min(bytes.size(), static_cast<size_t>(room)));
    XXH3_64bits_update(&state_->xxh3, piece.data(), piece.size());
    bytes_ += static_cast<int64_t>(piece.size());
    bytes = bytes.subspan(piece.size());
    if (bytes_ % block_bytes_ == 0) {
      blocks_.push_back(XXH3_64bits_digest(&state_->xxh3));
      XXH3_64bits_reset(&state_->xxh3);
    }
  }
}

std::vector<uint64_t> BlockChecksums::finish() {
  if (bytes_ % block_bytes_ != 0) blocks_.push_back(XXH3_64bits_digest(&state_->xxh3));
  return std::move(blocks_);
}

}  // namespace oom::checkpoint
