/// Runs CUDA kernels on the CPU, block after block, so that their indices, barriers and arithmetic are tested where no GPU is. Every thread is a fiber
/// that runs until it must wait for others of its warp or block; copies that a kernel starts arrive only when it waits for them; shared memory begins as
/// NaN. Not emulated: races that a lucky order hides (kBackwards turns the order of warps around), memory faults, speed.
///
/// Kernels are compiled as C++ with this file before them and this folder first in the include path, where ops/delta_rule/start.cuh and tensor_core.cuh
/// take the place of those for the device.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#include "emulated_device.h"

namespace oom::emulated_cuda {

constexpr int kSharedBytes = 256 << 10;
unsigned char* shared_bytes();

/// Runs `body` once for each thread of each block.
void launch(dim3 grid, int threads, const std::function<void()>& body);

// For the running thread:
uint3 thread_index();
uint3 block_index();
void block_barrier();
void barrier(int id, int threads);
/// Calls meet(arguments of the warp's 32 lanes) once all have come here, then returns in each.
void warp_meeting(void* argument, const std::function<void(void* const*)>& meet);
template <typename Argument, typename Meet>
void warp_meeting(Argument& argument, Meet&& meet) {
  warp_meeting(static_cast<void*>(&argument), [&](void* const* lanes) { meet(reinterpret_cast<Argument* const*>(lanes)); });
}
void start_copy(void* to, const void* from, bool valid);
void commit_copies();
void wait_copies(int pending);

template <typename Value>
Value shuffled(Value value, const std::function<int(int)>& source) {
  struct Exchange {
    Value given, received;
  } exchange{value, value};
  warp_meeting(exchange, [&](Exchange* const* lanes) {
    for (int lane = 0; lane < 32; ++lane) lanes[lane]->received = lanes[source(lane)]->given;
  });
  return exchange.received;
}

}  // namespace oom::emulated_cuda

#define threadIdx (::oom::emulated_cuda::thread_index())
#define blockIdx (::oom::emulated_cuda::block_index())
#define __syncthreads() ::oom::emulated_cuda::block_barrier()
#undef __launch_bounds__
#define __launch_bounds__(...)

using std::max;
using std::min;

inline float __expf(float x) { return std::exp(x); }
inline float __uint_as_float(unsigned int bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
template <typename Value>
Value __shfl_xor_sync(unsigned int, Value value, int mask) {
  return oom::emulated_cuda::shuffled(value, [=](int lane) { return lane ^ mask; });
}
template <typename Value>
Value __shfl_up_sync(unsigned int, Value value, int distance) {
  return oom::emulated_cuda::shuffled(value, [=](int lane) { return lane >= distance ? lane - distance : lane; });
}
template <typename Value>
Value __shfl_down_sync(unsigned int, Value value, int distance) {
  return oom::emulated_cuda::shuffled(value, [=](int lane) { return lane + distance < 32 ? lane + distance : lane; });
}
