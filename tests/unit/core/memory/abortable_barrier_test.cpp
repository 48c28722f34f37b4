#include "memory/abortable_barrier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace oom::memory {
namespace {

TEST(AbortableBarrier, MeetsManyTimes) {
  constexpr int kThreads = 3, kRounds = 500;
  AbortableBarrier barrier(kThreads);
  std::atomic<int> arrivals = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&] {
      for (int round = 1; round <= kRounds; ++round) {
        ++arrivals;
        barrier.arrive_and_wait();
        EXPECT_GE(arrivals, round * kThreads);
        barrier.arrive_and_wait();
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(arrivals, kThreads * kRounds);
}

TEST(AbortableBarrier, FreesWaitersWhenOneThreadFails) {
  AbortableBarrier barrier(3);
  std::atomic<int> freed = 0;
  std::vector<std::thread> waiters;
  for (int t = 0; t < 2; ++t)
    waiters.emplace_back([&] {
      try {
        barrier.arrive_and_wait();
      } catch (const BarrierAborted& error) {
        EXPECT_THAT(error.what(), ::testing::HasSubstr("rank 2, layer 7"));
        ++freed;
      }
    });
  barrier.abort("rank 2, layer 7");
  barrier.abort("a later reason");
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(freed, 2);
  EXPECT_TRUE(barrier.aborted());
  EXPECT_THROW(barrier.arrive_and_wait(), BarrierAborted);
}

TEST(AbortableBarrier, LetsOneThreadPassAlone) { AbortableBarrier(1).arrive_and_wait(); }

}  // namespace
}  // namespace oom::memory
