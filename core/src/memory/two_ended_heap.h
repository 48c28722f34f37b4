/// Where short-lived blocks of memory lie in a range of addresses: places only, no memory.
///
/// Blocks of `large` bytes or more lie as near the top as they fit, all others as near the bottom. Long-lived small blocks then never part the room that large
/// ones come and go in: in a training step (tests/unit/core/memory/data) the two ends together take 1.002 times what is in use at most, where one end takes 1.07.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace oom::memory {

/// Each block at the lowest offset where it fits.
class FirstFit {
 public:
  int64_t place(int64_t bytes);
  /// Of a block that was placed; returns its size.
  int64_t remove(int64_t offset);
  /// Where the last block ends.
  int64_t end() const { return blocks_.empty() ? 0 : blocks_.rbegin()->first + blocks_.rbegin()->second; }

 private:
  std::map<int64_t, int64_t> blocks_;  // offset -> bytes
};

/// Requests and releases in their order, to be placed again under another `large`.
class RequestLog {
 public:
  /// `block` is the caller's name of it, not in use now. Releases of blocks that were requested before the log began are left out, and what follows the first 64K events.
  void request(int64_t block, int64_t bytes);
  void release(int64_t block);
  void clear();
  bool empty() const { return events_.empty(); }
  /// What both ends take at most.
  int64_t extent_with(int64_t large) const;
  /// The `large` with which they take least, in the middle of a gap between sizes: those that routing varies stay on one side.
  int64_t best_large() const;

 private:
  struct Event {
    int64_t bytes;    // > 0: a request
    size_t releases;  // else: of which event
  };
  std::vector<Event> events_;
  std::map<int64_t, size_t> open_;
};

class TwoEndedHeap {
 public:
  static constexpr int64_t kAlignment = 512;

  /// Offsets are below `top`. Both in bytes, `top` a multiple of kAlignment.
  TwoEndedHeap(int64_t top, int64_t large) : top_(top), large_(large) {}

  /// `bytes` > 0. Returns the block's offset, a multiple of kAlignment; -1 where the two ends would meet.
  int64_t allocate(int64_t bytes);
  /// Returns the size the block was given.
  int64_t release(int64_t offset);
  /// For blocks from now on.
  void set_large(int64_t bytes) { large_ = bytes; }
  int64_t large() const { return large_; }

 private:
  int64_t top_;
  int64_t large_;
  FirstFit bottom_;
  FirstFit down_;  // offset 0 is the top
  std::map<int64_t, int64_t> down_blocks_;  // offset -> offset in down_
};

}  // namespace oom::memory
