#include "memory/work_queue.h"

#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>

namespace oom::memory {
namespace {

TEST(WorkQueue, RunsTasksInOrder) {
  std::vector<int> order;
  WorkQueue queue("test");
  for (int i = 0; i < 1000; ++i) queue.push([&order, i] { order.push_back(i); });
  queue.drain();
  ASSERT_EQ(order.size(), 1000u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST(WorkQueue, WaitsForOneTaskOnly) {
  std::mutex gate;
  gate.lock();
  int first = 0;
  WorkQueue queue("test");
  const auto ticket = queue.push([&] { first = 1; });
  queue.push([&] { const std::lock_guard closed(gate); });
  queue.wait(ticket);
  EXPECT_EQ(first, 1);
  gate.unlock();
  queue.drain();
}

TEST(WorkQueue, DropsWhatFollowsAFailure) {
  bool ran = false;
  WorkQueue queue("test");
  queue.push([] { throw std::runtime_error("layer 3"); });
  queue.push([&] { ran = true; });
  EXPECT_THROW(queue.drain(), std::runtime_error);
  EXPECT_THROW(queue.wait(1), std::runtime_error);
  EXPECT_FALSE(ran);
  EXPECT_TRUE(queue.failed());
}

TEST(WorkQueue, FinishesWhatWasPushedBeforeItDies) {
  int done = 0;
  {
    WorkQueue queue("test");
    for (int i = 0; i < 50; ++i) queue.push([&] { ++done; });
  }
  EXPECT_EQ(done, 50);
}

}  // namespace
}  // namespace oom::memory
