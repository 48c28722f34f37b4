#include "emulated_cuda.h"

#include <ucontext.h>

#include <array>
#include <memory>
#include <stdexcept>
#include <vector>

#undef threadIdx
#undef blockIdx

namespace oom::ops::delta_rule {
// The kernels' dynamic shared memory, under the name that they declare.
extern unsigned char shared_bytes[];
alignas(128) unsigned char shared_bytes[emulated_cuda::kSharedBytes];
}  // namespace oom::ops::delta_rule

namespace oom::emulated_cuda {
namespace {

struct Copy {
  void* to;
  const void* from;
  bool valid;
};

/// Where threads wait for each other: the last to come opens it for all.
struct Meeting {
  int present = 0;
  unsigned int opened = 0;
};

struct Fiber {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(64 << 10);
  uint3 index{};
  int warp = 0, lane = 0;
  bool done = false;
  const Meeting* waits_at = nullptr;
  unsigned int waits_past = 0;
  std::vector<Copy> started;
  std::vector<std::vector<Copy>> committed;

  bool can_run() const { return !done && (waits_at == nullptr || waits_at->opened != waits_past); }
};

struct Warp {
  Meeting meeting;
  std::array<void*, 32> arguments{};
};

struct Block {
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<Warp> warps;
  Meeting all;
  std::array<Meeting, 16> named;
  uint3 index{};
  ucontext_t scheduler;
  Fiber* running = nullptr;
  const std::function<void()>* body = nullptr;
};
Block* block = nullptr;

/// Comes to a meeting of `expected`; `open` runs in the last.
void come(Meeting& meeting, int expected, const std::function<void()>& open = [] {}) {
  Fiber& fiber = *block->running;
  if (++meeting.present == expected) {
    open();
    meeting.present = 0;
    ++meeting.opened;
    return;
  }
  fiber.waits_past = meeting.opened;
  fiber.waits_at = &meeting;
  swapcontext(&fiber.context, &block->scheduler);
  fiber.waits_at = nullptr;
}

void run_fiber() {
  (*block->body)();
  block->running->done = true;
  swapcontext(&block->running->context, &block->scheduler);
}

void reset(Fiber& fiber, int index) {
  fiber.index = {static_cast<unsigned int>(index), 0, 0};
  fiber.warp = index / 32, fiber.lane = index % 32;
  fiber.done = false;
  fiber.started.clear(), fiber.committed.clear();
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.data();
  fiber.context.uc_stack.ss_size = fiber.stack.size();
  makecontext(&fiber.context, run_fiber, 0);
}

void run_block() {
  std::memset(ops::delta_rule::shared_bytes, 0xff, kSharedBytes);
  const int warps = static_cast<int>(block->warps.size());
  for (bool moved = true; moved;) {
    moved = false;
    for (int i = 0; i < warps; ++i) {
      const int warp = device().order == Order::kForwards ? i : warps - 1 - i;
      for (bool again = true; again;) {
        again = false;
        for (int lane = 0; lane < 32; ++lane) {
          Fiber& fiber = *block->fibers[static_cast<size_t>(32 * warp + lane)];
          if (!fiber.can_run()) continue;
          block->running = &fiber;
          swapcontext(&block->scheduler, &fiber.context);
          again = moved = true;
        }
      }
    }
  }
  for (const auto& fiber : block->fibers)
    if (!fiber->done) throw std::logic_error("emulated kernel: threads wait for others that never come");
}

}  // namespace

Device& device() {
  static Device chosen;
  return chosen;
}
unsigned char* shared_bytes() { return ops::delta_rule::shared_bytes; }

void launch(dim3 grid, int threads, const std::function<void()>& body) {
  Block blocks;
  block = &blocks;
  blocks.body = &body;
  blocks.warps.resize(static_cast<size_t>(threads) / 32);
  for (int i = 0; i < threads; ++i) blocks.fibers.push_back(std::make_unique<Fiber>());
  for (unsigned int z = 0; z < grid.z; ++z)
    for (unsigned int y = 0; y < grid.y; ++y)
      for (unsigned int x = 0; x < grid.x; ++x) {
        blocks.index = {x, y, z};
        for (int i = 0; i < threads; ++i) reset(*blocks.fibers[static_cast<size_t>(i)], i);
        run_block();
      }
  block = nullptr;
}

uint3 thread_index() { return block->running->index; }
uint3 block_index() { return block->index; }
void block_barrier() { come(block->all, static_cast<int>(block->fibers.size())); }
void barrier(int id, int threads) { come(block->named[static_cast<size_t>(id)], threads); }

void warp_meeting(void* argument, const std::function<void(void* const*)>& meet) {
  const Fiber& fiber = *block->running;
  Warp& warp = block->warps[static_cast<size_t>(fiber.warp)];
  warp.arguments[static_cast<size_t>(fiber.lane)] = argument;
  come(warp.meeting, 32, [&] { meet(warp.arguments.data()); });
}

void start_copy(void* to, const void* from, bool valid) {
  if (reinterpret_cast<uintptr_t>(to) % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0)
    throw std::logic_error("emulated kernel: a copy of 16 bytes that does not begin on 16");
  block->running->started.push_back({to, from, valid});
}
void commit_copies() {
  Fiber& fiber = *block->running;
  fiber.committed.push_back(std::move(fiber.started));
  fiber.started.clear();
}
void wait_copies(int pending) {
  std::vector<std::vector<Copy>>& committed = block->running->committed;
  while (static_cast<int>(committed.size()) > pending) {
    for (const Copy& copy : committed.front()) {
      if (copy.valid)
        std::memcpy(copy.to, copy.from, 16);
      else
        std::memset(copy.to, 0, 16);
    }
    committed.erase(committed.begin());
  }
}

}  // namespace oom::emulated_cuda
