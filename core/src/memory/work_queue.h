/// A lane of the host: one thread that runs what it is given in order.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace oom::memory {

/// In-order, one thread, sleeping when idle. After a task has thrown, later tasks are dropped and every wait throws what it threw.
/// The destructor runs what was pushed (unless a task failed) and joins.
class WorkQueue {
 public:
  using Ticket = uint64_t;

  /// The thread may run on any of `cpus`; empty: anywhere.
  explicit WorkQueue(std::string name, std::vector<int> cpus = {});
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  /// Appends a task, from any thread; returns its ticket, counted from 1.
  Ticket push(std::function<void()> task);
  /// Waits until that task and all before it are done.
  void wait(Ticket ticket);
  /// Waits for everything pushed so far.
  void drain();
  /// Says whether a task has thrown.
  bool failed() const;

 private:
  void work(const std::vector<int>& cpus);

  std::string name_;
  mutable std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::deque<std::function<void()>> tasks_;
  Ticket pushed_ = 0, finished_ = 0;
  bool stopping_ = false;
  std::exception_ptr failure_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace oom::memory
