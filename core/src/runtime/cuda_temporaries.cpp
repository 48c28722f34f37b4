#include "runtime/cuda_temporaries.h"

#include <c10/cuda/CUDAGuard.h>
#include <cuda.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

#include "base/text.h"
#include "oom/error.h"
#include "oom/log.h"

namespace oom::runtime {
namespace {

constexpr int64_t kPageBytes = 8 << 20;

void check(cudaError_t status, const std::string& what) {
  if (status != cudaSuccess) throw DeviceError(cat(what, ": ", cudaGetErrorString(status)));
}

// The driver's functions, found at run time: this library loads on machines without a driver.
struct Driver {
  decltype(&cuMemAddressReserve) reserve;
  decltype(&cuMemCreate) create;
  decltype(&cuMemRelease) release;
  decltype(&cuMemMap) map;
  decltype(&cuMemUnmap) unmap;
  decltype(&cuMemSetAccess) set_access;
  decltype(&cuGetErrorString) error_string;

  static const Driver& get() {
    static const Driver driver = [] {
      Driver found{};
      find("cuMemAddressReserve", found.reserve);
      find("cuMemCreate", found.create);
      find("cuMemRelease", found.release);
      find("cuMemMap", found.map);
      find("cuMemUnmap", found.unmap);
      find("cuMemSetAccess", found.set_access);
      find("cuGetErrorString", found.error_string);
      return found;
    }();
    return driver;
  }

  void check(CUresult status, const char* what) const {
    if (status == CUDA_SUCCESS) return;
    const char* text = nullptr;
    (void)error_string(status, &text);
    throw DeviceError(cat(what, ": ", text ? text : "unknown error"));
  }

 private:
  template <class Function>
  static void find(const char* name, Function& function) {
    void* address = nullptr;
    cudaDriverEntryPointQueryResult result{};
    const cudaError_t status = cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &result);
    if (status != cudaSuccess || result != cudaDriverEntryPointSuccess) throw DeviceError(cat("the CUDA driver has no ", name, "; it must be of CUDA 12.0 or newer"));
    function = reinterpret_cast<Function>(address);
  }
};

class CudaPages final : public memory::PageDevice {
 public:
  CudaPages(int device, cudaStream_t stream) : device_(device), stream_(stream) {
    kind_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind_.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  }
  int64_t page_bytes() const override { return kPageBytes; }
  std::byte* reserve(int64_t bytes) override {
    driver_.check(driver_.reserve(&base_, static_cast<size_t>(bytes), kPageBytes, 0, 0), "cuMemAddressReserve");
    return reinterpret_cast<std::byte*>(base_);
  }
  Page create() override {
    CUmemGenericAllocationHandle page = 0;
    driver_.check(driver_.create(&page, kPageBytes, &kind_, 0), "cuMemCreate");
    return page;
  }
  void destroy(Page page) override { (void)driver_.release(page); }
  void map(int64_t offset, Page page) override {
    driver_.check(driver_.map(base_ + offset, kPageBytes, 0, page, 0), "cuMemMap");
    const CUmemAccessDesc access{.location = kind_.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    if (const CUresult status = driver_.set_access(base_ + offset, kPageBytes, &access, 1); status != CUDA_SUCCESS) {
      (void)driver_.unmap(base_ + offset, kPageBytes);
      driver_.check(status, "cuMemSetAccess");
    }
  }
  void unmap(int64_t offset) override { driver_.check(driver_.unmap(base_ + offset, kPageBytes), "cuMemUnmap"); }
  void wait() override {
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device_));
    check(cudaStreamSynchronize(stream_), cat("gpu ", device_, ": waiting for its compute lane"));
  }

 private:
  const Driver& driver_ = Driver::get();
  const int device_;
  const cudaStream_t stream_;
  CUmemAllocationProp kind_{};
  CUdeviceptr base_ = 0;
};

// One of a GPU. Lives as long as the process: at exit the driver may be gone before it.
class Temporaries {
 public:
  void open(int device, cudaStream_t stream, int64_t capacity, int64_t expected) {
    const std::lock_guard lock(mutex_);
    if (!pool_) {
      const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
      size_t free = 0, total = 0;
      check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
      pool_ = std::make_unique<memory::TemporariesPool>(std::make_unique<CudaPages>(device, stream), 2 * static_cast<int64_t>(total) + kPageBytes);
      stream_ = stream;
    }
    OOM_CHECK(stream == stream_, "the temporaries of GPU ", device, " were opened for another stream");
    pool_->set_capacity(capacity, expected);
    peak_beside_ = beside_;
  }

  void* allocate(int64_t bytes, int device, cudaStream_t stream) {
    if (bytes == 0) return nullptr;
    if (memory::TemporariesPool* pool = pool_for(stream)) return pool->allocate(bytes);
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
    void* data = nullptr;
    if (const cudaError_t status = cudaMalloc(&data, static_cast<size_t>(bytes)); status != cudaSuccess) {
      (void)cudaGetLastError();
      throw DeviceError(cat("gpu ", device, ": ", base::format_bytes(bytes), " could not be allocated: ", cudaGetErrorString(status)));
    }
    const std::lock_guard lock(mutex_);
    sizes_[data] = bytes;
    beside_ += bytes;
    peak_beside_ = std::max(peak_beside_, beside_);
    return data;
  }

  void release(void* data, int device) {
    {
      const std::lock_guard lock(mutex_);
      if (pool_ && pool_->owns(data)) return pool_->release(static_cast<std::byte*>(data));
      const auto size = sizes_.find(data);
      if (size != sizes_.end()) {
        beside_ -= size->second;
        sizes_.erase(size);
      }
    }
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
    (void)cudaFree(data);
  }

  void end_step() {
    const std::lock_guard lock(mutex_);
    if (pool_) pool_->end_step();
  }

  CudaTemporaries usage() const {
    const std::lock_guard lock(mutex_);
    return {.pool = pool_ ? pool_->usage() : memory::TemporariesPool::Usage{}, .beside = beside_, .peak_beside = peak_beside_};
  }

 private:
  memory::TemporariesPool* pool_for(cudaStream_t stream) const {
    const std::lock_guard lock(mutex_);
    return pool_ && stream == stream_ ? pool_.get() : nullptr;
  }

  mutable std::mutex mutex_;
  std::unique_ptr<memory::TemporariesPool> pool_;
  cudaStream_t stream_ = nullptr;
  std::map<void*, int64_t> sizes_;  // of what lies beside the pool
  int64_t beside_ = 0;
  int64_t peak_beside_ = 0;
};

std::vector<Temporaries>& all() {
  static auto& devices = *new std::vector<Temporaries>(c10::cuda::device_count());
  return devices;
}

}  // namespace

void install_cuda_temporaries() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (c10::cuda::CUDACachingAllocator::get()->initialized()) throw DeviceError("LibTorch's allocator is in use already: temporaries cannot come from a pool of their own");
    torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(torch::cuda::CUDAPluggableAllocator::createCustomAllocator(
        [](size_t bytes, int device, cudaStream_t stream) { return all().at(device).allocate(static_cast<int64_t>(bytes), device, stream); },
        [](void* data, size_t, int device, cudaStream_t) { all().at(device).release(data, device); }));
  });
}

void open_cuda_temporaries(int device, cudaStream_t stream, int64_t capacity, int64_t expected) { all().at(device).open(device, stream, capacity, expected); }

void end_cuda_temporaries_step() {
  for (Temporaries& device : all()) device.end_step();
}

CudaTemporaries cuda_temporaries(int device) { return all().at(device).usage(); }

}  // namespace oom::runtime
