#include "fake_cuda_runtime.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace {

// One record of an event: done when its stream has come so far.
struct Record {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::chrono::steady_clock::time_point when;

  void finish() {
    const std::lock_guard lock(mutex);
    done = true;
    when = std::chrono::steady_clock::now();
    changed.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return done; });
  }
  bool is_done() {
    const std::lock_guard lock(mutex);
    return done;
  }
};

thread_local int current_device = 0;

// cuStreamWaitValue64: the stream looks at the word until it is at least `value`, by the sign of their difference.
CUresult wait_value(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags);

}  // namespace

struct CUevent_st {
  std::mutex mutex;
  std::shared_ptr<Record> last;

  std::shared_ptr<Record> get() {
    const std::lock_guard lock(mutex);
    return last;
  }
};

struct CUstream_st {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  bool ending = false;
  std::thread thread{[this] { work(); }};

  void push(std::function<void()> item) {
    const std::lock_guard lock(mutex);
    queue.push_back(std::move(item));
    changed.notify_all();
  }
  void work() {
    while (true) {
      std::function<void()> item;
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return !queue.empty() || ending; });
        if (queue.empty()) return;
        item = std::move(queue.front());
        queue.pop_front();
      }
      item();
    }
  }
};

namespace {

CUresult wait_value(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags) {
  if (flags != CU_STREAM_WAIT_VALUE_GEQ) return CUDA_ERROR_INVALID_VALUE;
  auto* word = reinterpret_cast<std::atomic<uint64_t>*>(address);
  stream->push([word, value] {
    while (static_cast<int64_t>(word->load(std::memory_order_acquire) - value) < 0) std::this_thread::sleep_for(std::chrono::microseconds(2));
  });
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned int) {
  *memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  return *memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned int, unsigned long long, cudaDriverEntryPointQueryResult* result) {
  const bool known = std::strcmp(name, "cuStreamWaitValue64") == 0 && !oom::program::fake_device_cannot_wait_for_memory;
  *function = known ? reinterpret_cast<void*>(&wait_value) : nullptr;
  *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  *lowest = 0;
  *highest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int, int) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  {
    const std::lock_guard lock(stream->mutex);
    stream->ending = true;
    stream->changed.notify_all();
  }
  stream->thread.join();
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  auto record = std::make_shared<Record>();
  {
    const std::lock_guard lock(event->mutex);
    event->last = record;
  }
  stream->push([record] { record->finish(); });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const auto record = event->get();
  return record == nullptr || record->is_done() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  if (const auto record = event->get()) stream->push([record] { record->wait(); });
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  const auto from = start->get(), to = end->get();
  if (!from || !to || !from->is_done() || !to->is_done()) return cudaErrorNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(to->when - from->when).count();
  return cudaSuccess;
}
const char* cudaGetErrorName(cudaError_t) { return "cudaErrorFake"; }
const char* cudaGetErrorString(cudaError_t) { return "an error of the fake"; }

}  // extern "C"

namespace oom::program {

bool fake_device_cannot_wait_for_memory = false;

void fake_launch(void* stream, std::function<void()> work) { static_cast<cudaStream_t>(stream)->push(std::move(work)); }

}  // namespace oom::program
