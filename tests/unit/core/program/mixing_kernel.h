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
/// A meeting of launches on several streams, of several devices too. Each member has a word of its own to write in pinned host memory: GPUs
/// have no atomic addition to it on every machine.
struct Rendezvous {
  unsigned* arrived = nullptr;  ///< [members] rounds that each has come to; null: no meeting
  int member = 0;
  int members = 0;
};

/// Launches it as one thread on `stream` (a cudaStream_t), after `delay_cycles` clock cycles, and after all members of the rendezvous
/// have come to `round`.
void mix_on_device(const Mixing& mixing, uint64_t step, long long delay_cycles, const Rendezvous& rendezvous, unsigned round, void* stream);

}  // namespace oom::program
