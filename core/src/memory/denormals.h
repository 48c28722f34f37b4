/// Denormal numbers as zero (FTZ and DAZ) for a thread's SSE and AVX arithmetic.
/// Tiny second moments otherwise make an optimizer pass more than twice as slow.
#pragma once

#include <xmmintrin.h>

namespace oom::memory {

inline constexpr unsigned kFlushToZero = 0x8000;
inline constexpr unsigned kDenormalsAreZero = 0x0040;

/// Sets both for the calling thread, for good.
inline void flush_denormals_on_this_thread() { _mm_setcsr(_mm_getcsr() | kFlushToZero | kDenormalsAreZero); }

/// Sets both for a scope and puts back what was there.
class ScopedDenormalsAsZero {
 public:
  ScopedDenormalsAsZero() : before_(_mm_getcsr()) { flush_denormals_on_this_thread(); }
  ~ScopedDenormalsAsZero() { _mm_setcsr(before_); }
  ScopedDenormalsAsZero(const ScopedDenormalsAsZero&) = delete;
  ScopedDenormalsAsZero& operator=(const ScopedDenormalsAsZero&) = delete;

 private:
  unsigned before_;
};

}  // namespace oom::memory
