#include "hardware/host_bandwidth.h"

#include <emmintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <deque>
#include <thread>

#include "base/text.h"
#include "hardware/thread_placement.h"
#include "oom/error.h"

namespace oom::hardware {
namespace {

constexpr int kPasses = 3;

/// Two buffers of one thread in one mapping.
class Buffers {
 public:
  explicit Buffers(int64_t bytes) : bytes_(bytes) {
    void* memory = mmap(nullptr, 2 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw BudgetError(cat("measuring host memory: ", base::format_bytes(2 * bytes), " could not be mapped"));
    memory_ = static_cast<std::byte*>(memory);
    madvise(memory_, 2 * bytes, MADV_HUGEPAGE);
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
  ~Buffers() { munmap(memory_, 2 * bytes_); }
  __m128i* source() const { return reinterpret_cast<__m128i*>(memory_); }
  __m128i* target() const { return reinterpret_cast<__m128i*>(memory_ + bytes_); }
  int64_t vectors() const { return bytes_ / static_cast<int64_t>(sizeof(__m128i)); }

 private:
  int64_t bytes_;
  std::byte* memory_;
};

void read_all(const Buffers& buffers) {
  __m128i sums[4] = {};
  const __m128i* source = buffers.source();
  for (int64_t i = 0; i < buffers.vectors(); i += 4)
    for (int k = 0; k < 4; ++k) sums[k] = _mm_xor_si128(sums[k], _mm_load_si128(source + i + k));
  // Keeps the loop: its result could matter as far as the compiler can tell.
  const __m128i all = _mm_xor_si128(_mm_xor_si128(sums[0], sums[1]), _mm_xor_si128(sums[2], sums[3]));
  asm volatile("" : : "x"(all));
}

void write_all(const Buffers& buffers) {
  const __m128i value = _mm_set1_epi8(1);
  __m128i* target = buffers.target();
  for (int64_t i = 0; i < buffers.vectors(); ++i) _mm_stream_si128(target + i, value);
  _mm_sfence();
}

void copy_all(const Buffers& buffers) {
  const __m128i* source = buffers.source();
  __m128i* target = buffers.target();
  for (int64_t i = 0; i < buffers.vectors(); ++i) _mm_stream_si128(target + i, _mm_load_si128(source + i));
  _mm_sfence();
}

}  // namespace

HostBandwidth measure_host_bandwidth(const std::vector<int>& cpus, int64_t bytes_per_thread) {
  const int64_t bytes = std::max<int64_t>(4096, bytes_per_thread / 4096 * 4096);
  const int threads = std::max<int>(1, static_cast<int>(cpus.size()));
  std::deque<Buffers> buffers;
  for (int t = 0; t < threads; ++t) buffers.emplace_back(bytes);

  using Clock = std::chrono::steady_clock;
  constexpr void (*kKinds[])(const Buffers&) = {read_all, write_all, copy_all};
  double best_seconds[3] = {1e30, 1e30, 1e30};
  std::barrier meet(threads);
  const auto work = [&](int t) {
    if (!cpus.empty()) pin_this_thread({cpus[t]});
    std::fill_n(buffers[t].source(), 2 * buffers[t].vectors(), _mm_set1_epi8(1));
    for (int kind = 0; kind < 3; ++kind)
      for (int pass = 0; pass < kPasses; ++pass) {
        meet.arrive_and_wait();
        const auto start = Clock::now();
        kKinds[kind](buffers[t]);
        meet.arrive_and_wait();
        if (t == 0) best_seconds[kind] = std::min(best_seconds[kind], std::chrono::duration<double>(Clock::now() - start).count());
      }
  };
  {
    std::vector<std::jthread> team;
    for (int t = 0; t < threads; ++t) team.emplace_back(work, t);
  }
  const double gigabytes = static_cast<double>(bytes) * threads / 1e9;
  return {gigabytes / best_seconds[0], gigabytes / best_seconds[1], 2 * gigabytes / best_seconds[2]};
}

}  // namespace oom::hardware
