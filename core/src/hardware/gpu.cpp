#include "hardware/gpu.h"

#include "oom/error.h"

#if OOM_WITH_CUDA
#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#endif

namespace oom::hardware {

#if OOM_WITH_CUDA
namespace {

void check(cudaError_t status, const char* call, int gpu) {
  if (status != cudaSuccess) throw DeviceError(cat(call, " on GPU ", gpu, ": ", cudaGetErrorName(status), ": ", cudaGetErrorString(status)));
}
#define OOM_CUDA_CALL(call, gpu) check(call, #call, gpu)

class ScopedDevice {
 public:
  explicit ScopedDevice(int gpu) {
    OOM_CUDA_CALL(cudaGetDevice(&before_), gpu);
    OOM_CUDA_CALL(cudaSetDevice(gpu), gpu);
  }
  ~ScopedDevice() { cudaSetDevice(before_); }
  ScopedDevice(const ScopedDevice&) = delete;
  ScopedDevice& operator=(const ScopedDevice&) = delete;

 private:
  int before_ = 0;
};

struct FreeDevice {
  void operator()(void* memory) const { cudaFree(memory); }
};
struct FreePinned {
  void operator()(void* memory) const { cudaFreeHost(memory); }
};
struct DestroyStream {
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
};
struct DestroyEvent {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
using DeviceMemory = std::unique_ptr<void, FreeDevice>;
using PinnedMemory = std::unique_ptr<void, FreePinned>;
using Stream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, DestroyStream>;
using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, DestroyEvent>;

DeviceMemory device_memory(int64_t bytes, int gpu) {
  void* memory = nullptr;
  OOM_CUDA_CALL(cudaMalloc(&memory, bytes), gpu);
  return DeviceMemory(memory);
}
PinnedMemory pinned_memory(int64_t bytes, int gpu) {
  void* memory = nullptr;
  OOM_CUDA_CALL(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable), gpu);
  return PinnedMemory(memory);
}
Stream new_stream(int gpu) {
  cudaStream_t stream = nullptr;
  OOM_CUDA_CALL(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), gpu);
  return Stream(stream);
}
Event new_event(int gpu) {
  cudaEvent_t event = nullptr;
  OOM_CUDA_CALL(cudaEventCreate(&event), gpu);
  return Event(event);
}

constexpr int kPasses = 3;

/// A copy on a stream of its own, timed by events.
struct TimedCopy {
  TimedCopy(void* to, const void* from, int64_t size, int device)
      : target(to), source(from), bytes(size), gpu(device), stream(new_stream(device)), start(new_event(device)), stop(new_event(device)) {}
  void issue() {
    OOM_CUDA_CALL(cudaEventRecord(start.get(), stream.get()), gpu);
    OOM_CUDA_CALL(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, stream.get()), gpu);
    OOM_CUDA_CALL(cudaEventRecord(stop.get(), stream.get()), gpu);
  }
  double finish_gb_s() {
    OOM_CUDA_CALL(cudaEventSynchronize(stop.get()), gpu);
    float milliseconds = 0;
    OOM_CUDA_CALL(cudaEventElapsedTime(&milliseconds, start.get(), stop.get()), gpu);
    return static_cast<double>(bytes) / (milliseconds * 1e6);
  }
  double best_gb_s() {
    double best = 0;
    for (int pass = 0; pass < kPasses; ++pass) {
      issue();
      best = std::max(best, finish_gb_s());
    }
    return best;
  }

  void* target;
  const void* source;
  int64_t bytes;
  int gpu;
  Stream stream;
  Event start, stop;
};

}  // namespace

GpuList list_gpus() {
  GpuList list;
  if (cudaDriverGetVersion(&list.driver_version) != cudaSuccess) list.driver_version = 0;
  if (cudaRuntimeGetVersion(&list.runtime_version) != cudaSuccess) list.runtime_version = 0;
  int count = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess) {
    cudaGetLastError();
    list.why_none = cudaGetErrorString(status);
    return list;
  }
  if (count == 0) list.why_none = "the CUDA driver lists no device";
  for (int index = 0; index < count; ++index) {
    cudaDeviceProp properties{};
    OOM_CUDA_CALL(cudaGetDeviceProperties(&properties, index), index);
    char bus_id[32] = {};
    OOM_CUDA_CALL(cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, index), index);
    list.gpus.push_back({index, properties.name, bus_id, static_cast<int64_t>(properties.totalGlobalMem), properties.multiProcessorCount,
                         properties.major, properties.minor});
  }
  list.peer_access.assign(count, std::vector<bool>(count, true));
  for (int from = 0; from < count; ++from)
    for (int to = 0; to < count; ++to) {
      int can = 1;
      if (from != to) OOM_CUDA_CALL(cudaDeviceCanAccessPeer(&can, from, to), from);
      list.peer_access[from][to] = can != 0;
    }
  return list;
}

int64_t gpu_free_bytes(int gpu) {
  const ScopedDevice device(gpu);
  size_t free = 0, total = 0;
  OOM_CUDA_CALL(cudaMemGetInfo(&free, &total), gpu);
  return static_cast<int64_t>(free);
}

GpuLinkBandwidth measure_gpu_link(int gpu, int64_t bytes) {
  const ScopedDevice device(gpu);
  const DeviceMemory device_in = device_memory(bytes, gpu), device_out = device_memory(bytes, gpu);
  const PinnedMemory host_in = pinned_memory(bytes, gpu), host_out = pinned_memory(bytes, gpu);
  TimedCopy h2d(device_in.get(), host_in.get(), bytes, gpu), d2h(host_out.get(), device_out.get(), bytes, gpu);
  GpuLinkBandwidth bandwidth;
  bandwidth.h2d_gb_s = h2d.best_gb_s();
  bandwidth.d2h_gb_s = d2h.best_gb_s();
  for (int pass = 0; pass < kPasses; ++pass) {
    h2d.issue();
    d2h.issue();
    bandwidth.both_h2d_gb_s = std::max(bandwidth.both_h2d_gb_s, h2d.finish_gb_s());
    bandwidth.both_d2h_gb_s = std::max(bandwidth.both_d2h_gb_s, d2h.finish_gb_s());
  }
  return bandwidth;
}

double measure_peer_gb_s(int from, int to, int64_t bytes) {
  int can = 0;
  OOM_CUDA_CALL(cudaDeviceCanAccessPeer(&can, from, to), from);
  if (can == 0) return 0;
  DeviceMemory target;
  {
    const ScopedDevice device(to);
    target = device_memory(bytes, to);
  }
  const ScopedDevice device(from);
  if (const cudaError_t status = cudaDeviceEnablePeerAccess(to, 0); status == cudaErrorPeerAccessAlreadyEnabled)
    cudaGetLastError();
  else
    check(status, "cudaDeviceEnablePeerAccess", from);
  const DeviceMemory source = device_memory(bytes, from);
  return TimedCopy(target.get(), source.get(), bytes, from).best_gb_s();
}

#else  // an engine for the CPU alone

namespace {
[[noreturn]] void no_gpu(const char* what) { throw DeviceError(cat(what, ": this engine was built for the CPU alone (OOM_CUDA=OFF, or no nvcc)")); }
}  // namespace

GpuList list_gpus() {
  GpuList list;
  list.why_none = "this engine was built for the CPU alone";
  return list;
}
int64_t gpu_free_bytes(int) { no_gpu("gpu_free_bytes"); }
GpuLinkBandwidth measure_gpu_link(int, int64_t) { no_gpu("measure_gpu_link"); }
double measure_peer_gb_s(int, int, int64_t) { no_gpu("measure_peer_gb_s"); }

#endif

}  // namespace oom::hardware
