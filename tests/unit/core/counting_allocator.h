// What a call allocates of LibTorch's CPU memory. c10::SetCPUAllocator(&counter(), 255) begins the counting.
#pragma once

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

namespace oom::testing {

/// Counts what lives of LibTorch's CPU memory, by account: of the thread that asked for it, whoever gives it back.
class CountingAllocator final : public c10::Allocator {
 public:
  static constexpr int kAccounts = 8;
  /// The account of what the calling thread allocates from now on. 0 until then.
  static void set_account(int account) { of_thread_ = account; }

  c10::DataPtr allocate(size_t bytes) override {
    Account& account = accounts_.at(static_cast<size_t>(of_thread_));
    auto* block = new Block{inner_->allocate(bytes), static_cast<int64_t>(bytes), &account};
    const int64_t now = account.live += block->bytes;
    for (int64_t peak = account.peak; now > peak && !account.peak.compare_exchange_weak(peak, now);) {
    }
    return {block->memory.get(), block, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

  int64_t live(int account = 0) const { return accounts_.at(static_cast<size_t>(account)).live; }
  void restart(int account = 0) {
    Account& counted = accounts_.at(static_cast<size_t>(account));
    counted.peak = counted.live.load();
  }
  int64_t peak(int account = 0) const { return accounts_.at(static_cast<size_t>(account)).peak; }

 private:
  struct Account {
    std::atomic<int64_t> live = 0, peak = 0;
  };
  struct Block {
    c10::DataPtr memory;
    int64_t bytes;
    Account* account;
  };
  static void release(void* context) {
    auto* block = static_cast<Block*>(context);
    block->account->live -= block->bytes;
    delete block;
  }

  static inline thread_local int of_thread_ = 0;
  c10::Allocator* inner_ = c10::GetDefaultCPUAllocator();
  std::array<Account, kAccounts> accounts_;
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
