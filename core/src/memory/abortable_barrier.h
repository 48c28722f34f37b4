/// A meeting point of a fixed number of threads that a failing thread can tear down.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>

#include "oom/error.h"

namespace oom::memory {

/// What threads get that waited for one that failed; the failure itself is reported by the thread that had it.
class OOM_API BarrierAborted : public DeviceError {
 public:
  explicit BarrierAborted(const std::string& why);
  ~BarrierAborted() override;
};

/// Reusable. No thread may wait here while a peer still owes a collective (see the program's rules).
class AbortableBarrier {
 public:
  explicit AbortableBarrier(int threads);
  /// Waits until all threads have arrived. Throws BarrierAborted once abort was called, before, meanwhile or by this round's peers.
  void arrive_and_wait();
  /// Frees every waiter, now and for good. The first call's reason is kept. Never throws, any thread.
  void abort(const std::string& why) noexcept;
  bool aborted() const;

 private:
  const int threads_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0;
  uint64_t round_ = 0;
  bool aborted_ = false;
  std::string why_;
};

}  // namespace oom::memory
