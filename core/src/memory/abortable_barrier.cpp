#include "memory/abortable_barrier.h"

namespace oom::memory {

BarrierAborted::BarrierAborted(const std::string& why) : DeviceError("another rank failed: " + why) {}
BarrierAborted::~BarrierAborted() = default;

AbortableBarrier::AbortableBarrier(int threads) : threads_(threads) { OOM_CHECK_GT(threads, 0, "barrier"); }

void AbortableBarrier::arrive_and_wait() {
  std::unique_lock lock(mutex_);
  if (aborted_) throw BarrierAborted(why_);
  const uint64_t round = round_;
  if (++arrived_ == threads_) {
    arrived_ = 0;
    ++round_;
    changed_.notify_all();
    return;
  }
  changed_.wait(lock, [&] { return aborted_ || round_ != round; });
  // A round that was complete before the abort counts as met.
  if (round_ == round) throw BarrierAborted(why_);
}

void AbortableBarrier::abort(const std::string& why) noexcept {
  const std::lock_guard lock(mutex_);
  if (!aborted_) {
    aborted_ = true;
    try {
      why_ = why;
    } catch (...) {  // no memory for the reason: the abort itself still counts
    }
  }
  changed_.notify_all();
}

bool AbortableBarrier::aborted() const {
  const std::lock_guard lock(mutex_);
  return aborted_;
}

}  // namespace oom::memory
