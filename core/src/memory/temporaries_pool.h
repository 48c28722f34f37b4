/// A GPU's memory for operators' temporaries: pages mapped where blocks are, as many as the budget allows, and no more than a step needs.
///
/// LibTorch's caching allocator places a block wherever an earlier one of that size left room. Under a cap that a step nearly fills, what is free lies in pieces, and each large request
/// makes it give all of them back and wait for the GPU. Here a step's requests are placed from two ends (two_ended_heap.h), tuned by the first step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "memory/two_ended_heap.h"

namespace oom::memory {

/// The pages of a pool whose blocks take `in_use` bytes at most: with gaps between blocks, and pages that a block fills in part. Measured on
/// H200: 0.2 to 2 % more (benchmarks/results/long_context_h200_202611.md).
constexpr int64_t pool_bytes(int64_t in_use) { return in_use + in_use / 50 + (16 << 20); }

/// A range of addresses and the pages behind it. Calls come one at a time.
class PageDevice {
 public:
  using Page = uint64_t;
  virtual ~PageDevice() = default;
  virtual int64_t page_bytes() const = 0;
  /// Addresses without memory; at most once.
  virtual std::byte* reserve(int64_t bytes) = 0;
  /// Throws DeviceError where the device has no more memory.
  virtual Page create() = 0;
  virtual void destroy(Page page) = 0;
  /// `offset` into the range, a multiple of page_bytes().
  virtual void map(int64_t offset, Page page) = 0;
  virtual void unmap(int64_t offset) = 0;
  /// Returns when the device uses no released block any more.
  virtual void wait() = 0;
};

/// Any thread; blocks must be used in the order of one stream, which PageDevice::wait waits for.
class TemporariesPool {
 public:
  /// `address_bytes`: more than twice what may ever be in use.
  TemporariesPool(std::unique_ptr<PageDevice> device, int64_t address_bytes);
  ~TemporariesPool();

  /// A new run begins: how many bytes may be mapped from now on, and how many its steps should need (0: not known). Until the first step has shown where blocks lie best, pages are rather moved than
  /// taken beyond `expected`. Gives back pages that are not in use.
  void set_capacity(int64_t bytes, int64_t expected);
  /// `bytes` > 0, to a multiple of 512. Throws DeviceError where that many are not left, with numbers.
  std::byte* allocate(int64_t bytes);
  void release(std::byte* block);
  bool owns(const void* address) const { return address >= base_ && address < base_ + address_bytes_; }
  /// After a step's last request: after the first, and after steps that had to move pages, looks for better places.
  void end_step();

  struct Usage {
    int64_t in_use = 0;       ///< bytes of blocks
    int64_t peak_in_use = 0;  ///< since set_capacity
    int64_t mapped = 0;       ///< bytes of pages
    int64_t peak_mapped = 0;  ///< since set_capacity
    int64_t waits = 0;        ///< times that pages had to be moved, each a wait for the device
    int64_t steps = 0;        ///< ended since set_capacity
  };
  Usage usage() const;

 private:
  struct Slot {
    bool mapped = false;
    PageDevice::Page page = 0;
    int32_t blocks = 0;  // in use that lie on it
  };
  static bool is_free(const Slot& slot) { return slot.mapped && slot.blocks == 0; }
  bool map_pages(int64_t offset, int64_t bytes);
  void create_pages(int64_t count, int64_t capacity);
  void take_free_pages(int64_t count);
  void unmap_free_pages(int64_t count);
  void give_back_free_pages(int64_t kept);

  mutable std::mutex mutex_;
  std::unique_ptr<PageDevice> device_;
  const int64_t page_bytes_;
  const int64_t address_bytes_;
  std::byte* base_;
  TwoEndedHeap heap_;
  RequestLog log_;
  std::vector<Slot> slots_;  // by page of the range
  std::vector<PageDevice::Page> spare_;
  int64_t capacity_ = 0;
  int64_t expected_ = 0;
  bool tuned_ = false;
  int64_t next_look_ = 1;    // at so many waits places are sought anew
  std::string device_full_;  // why it gave no page to this request
  Usage usage_;
};

}  // namespace oom::memory
