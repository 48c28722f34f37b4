// What a call allocates of LibTorch's CPU memory. c10::SetCPUAllocator(&counter(), 255) begins the counting.
#pragma once

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace oom::testing {

/// Counts what lives of LibTorch's CPU memory.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    auto* block = new Block{inner_->allocate(bytes), static_cast<int64_t>(bytes), this};
    const int64_t now = live_ += block->bytes;
    for (int64_t peak = peak_; now > peak && !peak_.compare_exchange_weak(peak, now);) {
    }
    return {block->memory.get(), block, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

  int64_t live() const { return live_; }
  void restart() { peak_ = live_.load(); }
  int64_t peak() const { return peak_; }

 private:
  struct Block {
    c10::DataPtr memory;
    int64_t bytes;
    CountingAllocator* owner;
  };
  static void release(void* context) {
    auto* block = static_cast<Block*>(context);
    block->owner->live_ -= block->bytes;
    delete block;
  }

  c10::Allocator* inner_ = c10::GetDefaultCPUAllocator();
  std::atomic<int64_t> live_ = 0, peak_ = 0;
};

inline CountingAllocator& counter() {
  static CountingAllocator allocator;
  return allocator;
}

struct Measured {
  int64_t result_bytes = 0;     ///< alive behind the call that was not before
  int64_t workspace_bytes = 0;  ///< most that lived beside that
};

template <typename Call>
Measured measure(const Call& call) {
  const int64_t before = counter().live();
  counter().restart();
  call();
  const int64_t result = counter().live() - before;
  return {result, counter().peak() - before - std::max<int64_t>(result, 0)};
}

}  // namespace oom::testing
