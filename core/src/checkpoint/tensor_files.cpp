#include "checkpoint/tensor_files.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "oom/error.h"

namespace oom::checkpoint {

std::vector<std::pair<size_t, size_t>> spread_over_files(std::span<const TensorInfo> tensors, int64_t file_bytes) {
  OOM_CHECK_GT(file_bytes, 0);
  std::vector<std::pair<size_t, size_t>> files;
  int64_t used_bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t bytes = tensors[i].bytes();
    if (files.empty() || used_bytes + bytes > file_bytes) {
      files.emplace_back(i, i);
      used_bytes = 0;
    }
    files.back().second = i + 1;
    used_bytes += bytes;
  }
  return files;
}

void for_each_parallel(size_t count, int threads, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr first_failure;
  std::mutex mutex;
  const auto run = [&] {
    while (!failed) {
      const size_t i = next.fetch_add(1);
      if (i >= count) return;
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failed.exchange(true)) first_failure = std::current_exception();
      }
    }
  };
  const size_t extra = std::min(count, static_cast<size_t>(std::max(threads, 1)));
  std::vector<std::jthread> pool;
  for (size_t i = 1; i < extra; ++i) pool.emplace_back(run);
  run();
  pool.clear();  // joins
  if (first_failure) std::rethrow_exception(first_failure);
}

}  // namespace oom::checkpoint
