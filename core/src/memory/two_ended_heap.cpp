#include "memory/two_ended_heap.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "memory/arena_layout.h"
#include "oom/error.h"

namespace oom::memory {
namespace {

constexpr int64_t kLeastLarge = 1 << 20;  // where smaller blocks lie makes no difference
constexpr int64_t kGap = 16;              // sizes closer than 1/16 are one
constexpr size_t kMostEvents = 1 << 16;   // layers repeat: more tell nothing new, and looking through them takes seconds

}  // namespace

int64_t FirstFit::place(int64_t bytes) {
  int64_t offset = 0;
  auto next = blocks_.begin();
  for (; next != blocks_.end() && next->first - offset < bytes; ++next) offset = next->first + next->second;
  blocks_.emplace_hint(next, offset, bytes);
  return offset;
}

int64_t FirstFit::remove(int64_t offset) {
  const auto block = blocks_.find(offset);
  OOM_CHECK(block != blocks_.end(), "no block at offset ", offset);
  const int64_t bytes = block->second;
  blocks_.erase(block);
  return bytes;
}

void RequestLog::request(int64_t block, int64_t bytes) {
  if (events_.size() >= kMostEvents) return;
  open_[block] = events_.size();
  events_.push_back({.bytes = bytes, .releases = 0});
}

void RequestLog::release(int64_t block) {
  const auto open = open_.find(block);
  if (open == open_.end()) return;
  events_.push_back({.bytes = 0, .releases = open->second});
  open_.erase(open);
}

void RequestLog::clear() {
  events_.clear();
  open_.clear();
}

int64_t RequestLog::extent_with(int64_t large) const {
  FirstFit bottom, top;
  int64_t bottom_extent = 0, top_extent = 0;
  std::vector<int64_t> offsets(events_.size());
  for (size_t i = 0; i < events_.size(); ++i) {
    const Event& event = events_[i];
    if (event.bytes > 0) {
      const bool down = event.bytes >= large;
      offsets[i] = (down ? top : bottom).place(event.bytes);
      int64_t& extent = down ? top_extent : bottom_extent;
      extent = std::max(extent, offsets[i] + event.bytes);
    } else {
      (events_[event.releases].bytes >= large ? top : bottom).remove(offsets[event.releases]);
    }
  }
  return bottom_extent + top_extent;
}

int64_t RequestLog::best_large() const {
  std::vector<int64_t> sizes;
  for (const Event& event : events_) {
    if (event.bytes > 0) sizes.push_back(event.bytes);
  }
  std::ranges::sort(sizes);
  int64_t best = std::numeric_limits<int64_t>::max(), least = extent_with(best);
  for (size_t i = 1; i < sizes.size(); ++i) {
    if (sizes[i] < kLeastLarge || sizes[i] < sizes[i - 1] + sizes[i - 1] / kGap) continue;
    const int64_t large = std::midpoint(sizes[i - 1], sizes[i]);
    if (const int64_t extent = extent_with(large); extent < least) best = large, least = extent;
  }
  return best;
}

int64_t TwoEndedHeap::allocate(int64_t bytes) {
  bytes = align_up(bytes, kAlignment);
  const bool down = bytes >= large_;
  const int64_t place = (down ? down_ : bottom_).place(bytes);
  if (bottom_.end() + down_.end() > top_) {
    (down ? down_ : bottom_).remove(place);
    return -1;
  }
  if (!down) return place;
  const int64_t offset = top_ - place - bytes;
  down_blocks_.emplace(offset, place);
  return offset;
}

int64_t TwoEndedHeap::release(int64_t offset) {
  const auto block = down_blocks_.find(offset);
  if (block == down_blocks_.end()) return bottom_.remove(offset);
  const int64_t place = block->second;
  down_blocks_.erase(block);
  return down_.remove(place);
}

}  // namespace oom::memory
