/// Arithmetic over a stage's buffers that host and device do alike, so that an executor's result can be compared bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>

namespace oom::program {

struct MixedBuffer {
  uint64_t* words = nullptr;
  size_t count = 0;
  bool read = false;
  bool written = false;
};

inline constexpr int kMostBuffers = 12;

struct Mixing {
  MixedBuffer buffers[kMostBuffers];
  int buffer_count = 0;
  uint64_t seed = 0;
};

/// Runs the mixing on the host.
void mix_on_host(const Mixing& mixing, uint64_t step);
/// Launches it as one thread on `stream` (a cudaStream_t), after `delay_cycles` clock cycles. When `arrived` is not null, adds one
/// to it first and goes on only when it has reached `expected`: a rendezvous with launches on other streams.
void mix_on_device(const Mixing& mixing, uint64_t step, long long delay_cycles, unsigned* arrived, unsigned expected, void* stream);

}  // namespace oom::program
