#include "memory/pinned_registry.h"

#include <algorithm>

#include "memory/arena_layout.h"

namespace oom::memory {

void NullPinnedRegistry::register_range(std::byte*, int64_t bytes, const std::function<void(int64_t)>& done) {
  if (done) done(bytes);
}

void NullPinnedRegistry::unregister_range(std::byte*) noexcept {}

std::vector<ByteRange> registration_pieces(std::byte* data, int64_t bytes, int threads) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  // What the range lies past a huge page is taken off the first piece, so that the borders after it are on huge pages.
  const auto past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(data) % kHugePageBytes);
  const int64_t piece = align_up(std::clamp((bytes + past + threads - 1) / threads, kGiB, 64 * kGiB - kHugePageBytes), kHugePageBytes);
  std::vector<ByteRange> pieces;
  for (int64_t offset = 0; offset < bytes;) {
    const int64_t length = std::min(bytes - offset, offset == 0 ? piece - past : piece);
    pieces.push_back({data + offset, length});
    offset += length;
  }
  return pieces;
}

}  // namespace oom::memory
