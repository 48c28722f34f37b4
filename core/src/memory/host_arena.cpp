#include "memory/host_arena.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "base/text.h"
#include "hardware/thread_placement.h"
#include "oom/error.h"
#include "oom/log.h"

namespace oom::memory {
namespace {

using Phase = HostArenaProgress::Phase;
constexpr int64_t kTouchPieceBytes = 16 * kHugePageBytes;
constexpr auto kProgressInterval = std::chrono::milliseconds(100);

void touch_piece(std::byte* data, int64_t bytes, bool poison) {
  if (poison) {
    std::fill_n(reinterpret_cast<uint32_t*>(data), bytes / static_cast<int64_t>(sizeof(uint32_t)), kPoison);
  } else {
    for (int64_t offset = 0; offset < bytes; offset += kPageBytes) *reinterpret_cast<volatile std::byte*>(data + offset) = std::byte{0};
  }
}

/// Runs `work` on a thread of its own and reports until it has ended; throws what it threw.
template <typename Work>
void report_while(const Work& work, const std::atomic<int64_t>& done, Phase phase, int64_t total, const HostArenaOptions& options) {
  std::mutex mutex;
  std::condition_variable ended;
  bool finished = false;
  std::exception_ptr failure;
  std::jthread worker([&] {
    std::exception_ptr thrown;
    try {
      work();
    } catch (...) {
      thrown = std::current_exception();
    }
    const std::lock_guard lock(mutex);
    failure = thrown;
    finished = true;
    ended.notify_one();
  });
  std::unique_lock lock(mutex);
  while (!ended.wait_for(lock, kProgressInterval, [&] { return finished; }))
    if (options.progress) options.progress({phase, done, total});
  lock.unlock();
  worker.join();
  if (failure) std::rethrow_exception(failure);
  if (options.progress) options.progress({phase, total, total});
}

}  // namespace

HostArena::HostArena(const HostArenaOptions& options) : registry_(options.registry) {
  int64_t total = 0;
  for (const HostArenaOptions::Node& node : options.nodes) total += align_up(node.bytes, kPageBytes);
  hardware::check_host_budget(total, options.limits ? *options.limits : hardware::read_host_limits());
  for (size_t n = 0; n < options.nodes.size(); ++n) {
    const std::string where = cat("NUMA node ", n);
    HostMapping mapping(options.nodes[n].bytes, options.nodes[n].os_index, where);
    const int64_t bytes = mapping.bytes();
    nodes_.push_back(std::make_unique<NodeRange>(NodeRange{std::move(mapping), ArenaLayout(where, bytes)}));
  }
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  touch(options);
  const double touch_seconds = seconds();
  register_ranges(options);
  log_debug("memory: ", base::format_bytes(total), " touched in ", touch_seconds, " s, registered in ", seconds() - touch_seconds, " s");
}

HostArena::~HostArena() { unregister_ranges(); }

void HostArena::touch(const HostArenaOptions& options) {
  std::atomic<int64_t> done = 0;
  std::vector<std::atomic<int64_t>> next(nodes_.size());
  const auto touch_node = [&](size_t n, int cpu) {
    if (cpu >= 0) hardware::pin_this_thread({cpu});
    const HostMapping& mapping = nodes_[n]->mapping;
    for (int64_t offset; (offset = next[n].fetch_add(kTouchPieceBytes)) < mapping.bytes();) {
      const int64_t bytes = std::min(kTouchPieceBytes, mapping.bytes() - offset);
      touch_piece(mapping.data() + offset, bytes, options.poison);
      done += bytes;
    }
  };
  const auto touch_all = [&] {
    std::vector<std::jthread> team;
    for (size_t n = 0; n < nodes_.size(); ++n) {
      if (options.nodes[n].touch_cpus.empty()) team.emplace_back(touch_node, n, -1);
      for (int cpu : options.nodes[n].touch_cpus) team.emplace_back(touch_node, n, cpu);
    }
  };
  report_while(touch_all, done, Phase::kTouch, mapped_bytes(), options);
}

void HostArena::register_ranges(const HostArenaOptions& options) {
  if (registry_ == nullptr) return;
  std::atomic<int64_t> done = 0;
  const auto register_all = [&] {
    int64_t before = 0;
    for (const auto& node : nodes_) {
      if (node->mapping.bytes() == 0) continue;
      registry_->register_range(node->mapping.data(), node->mapping.bytes(), [&](int64_t bytes) { done = before + bytes; });
      node->registered = true;
      before += node->mapping.bytes();
    }
  };
  try {
    report_while(register_all, done, Phase::kRegister, mapped_bytes(), options);
  } catch (...) {
    unregister_ranges();
    throw;
  }
}

void HostArena::unregister_ranges() noexcept {
  for (const auto& node : nodes_)
    if (std::exchange(node->registered, false)) registry_->unregister_range(node->mapping.data());
}

std::byte* HostArena::allocate(int node, std::string name, std::string memory_class, int64_t bytes, int64_t alignment) {
  NodeRange& range = *nodes_.at(node);
  return range.mapping.data() + range.layout.add(std::move(name), std::move(memory_class), bytes, alignment).offset;
}

int64_t HostArena::mapped_bytes() const {
  int64_t total = 0;
  for (const auto& node : nodes_) total += node->mapping.bytes();
  return total;
}

}  // namespace oom::memory
