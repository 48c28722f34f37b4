/// The host threads of one NUMA node that do bulk work: first touch, conversion, optimizer updates.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace oom::memory {

/// A fixed set of threads, each pinned to one processor (when any are given) and with denormals as zero.
/// Idle threads sleep. parallel_for may be called from any thread outside the pool; concurrent calls run one after another.
/// The destructor waits for a running call and joins the threads.
class WorkerPool {
 public:
  /// Starts one thread for each entry of `cpus` (operating-system numbers). A thread that cannot be pinned runs unpinned (debug line).
  WorkerPool(std::string name, std::vector<int> cpus);
  /// Starts `threads` unpinned threads, at least one.
  WorkerPool(std::string name, int threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int size() const { return static_cast<int>(threads_.size()); }
  const std::string& name() const { return name_; }

  /// Divides [0, count) into size() contiguous parts, always the same for the same count, and calls body(begin, end, worker) for each part
  /// that is not empty, on its worker. Returns when all have returned; then throws what the lowest failed worker threw, if any did.
  void parallel_for(int64_t count, const std::function<void(int64_t begin, int64_t end, int worker)>& body);

 private:
  void start(int threads, const std::vector<int>& cpus);
  void work(int worker, int cpu);

  std::string name_;
  std::vector<std::thread> threads_;
  std::mutex callers_;  // held for a whole parallel_for

  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_, done_;
  uint64_t round_ = 0;
  bool stopping_ = false;
  int running_ = 0;
  int64_t count_ = 0;
  const std::function<void(int64_t, int64_t, int)>* body_ = nullptr;
  std::vector<std::exception_ptr> failures_;
};

}  // namespace oom::memory
