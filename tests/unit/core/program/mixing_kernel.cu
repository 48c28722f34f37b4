#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "mixing_kernel.h"

namespace oom::program {
namespace {

__host__ __device__ uint64_t mix(uint64_t a, uint64_t b) { return (a ^ (b + 0x9e3779b97f4a7c15ull)) * 0xbf58476d1ce4e5b9ull + (a >> 29); }

__host__ __device__ void apply(const Mixing& mixing, uint64_t step) {
  uint64_t value = mix(mixing.seed, step);
  for (int b = 0; b < mixing.buffer_count; ++b) {
    if (!mixing.buffers[b].read) continue;
    for (size_t i = 0; i < mixing.buffers[b].count; ++i) value = mix(value, mixing.buffers[b].words[i]);
  }
  for (int b = 0; b < mixing.buffer_count; ++b) {
    if (!mixing.buffers[b].written) continue;
    for (size_t i = 0; i < mixing.buffers[b].count; ++i) mixing.buffers[b].words[i] = value = mix(value, 7);
  }
}

__global__ void mixing_kernel(Mixing mixing, uint64_t step, long long delay_cycles, Rendezvous rendezvous, unsigned round) {
  if (rendezvous.arrived != nullptr) {
    volatile unsigned* arrived = rendezvous.arrived;
    __threadfence_system();
    arrived[rendezvous.member] = round;
    for (int m = 0; m < rendezvous.members; ++m) {
      while (arrived[m] < round) {
      }
    }
    __threadfence_system();
  }
  const long long begin = clock64();
  while (clock64() - begin < delay_cycles) {
  }
  apply(mixing, step);
  __threadfence_system();
}

}  // namespace

void mix_on_host(const Mixing& mixing, uint64_t step) { apply(mixing, step); }

void mix_on_device(const Mixing& mixing, uint64_t step, long long delay_cycles, const Rendezvous& rendezvous, unsigned round, void* stream) {
  mixing_kernel<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(mixing, step, delay_cycles, rendezvous, round);
  if (const cudaError_t status = cudaGetLastError(); status != cudaSuccess) {
    throw std::runtime_error(std::string("launching the mixing kernel: ") + cudaGetErrorString(status));
  }
}

}  // namespace oom::program
