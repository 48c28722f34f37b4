#include "memory/worker_pool.h"

#include <gtest/gtest.h>
#include <xmmintrin.h>

#include <atomic>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "hardware/thread_placement.h"

namespace oom::memory {
namespace {

TEST(WorkerPool, CoversEveryIndexOnceInContiguousParts) {
  WorkerPool pool("test", 3);
  for (int64_t count : {1, 2, 3, 4, 1000}) {
    std::vector<int> visits(count), worker_of(count, -1);
    pool.parallel_for(count, [&](int64_t begin, int64_t end, int worker) {
      EXPECT_LT(begin, end);
      for (int64_t i = begin; i < end; ++i) {
        ++visits[i];
        worker_of[i] = worker;
      }
    });
    EXPECT_EQ(visits, std::vector<int>(count, 1));
    EXPECT_TRUE(std::is_sorted(worker_of.begin(), worker_of.end()));
  }
}

TEST(WorkerPool, GivesTheSamePartToTheSameThreadEachTime) {
  WorkerPool pool("test", 2);
  std::vector<std::thread::id> first(10), second(10);
  pool.parallel_for(10, [&](int64_t begin, int64_t end, int) { std::fill(&first[begin], &first[0] + end, std::this_thread::get_id()); });
  pool.parallel_for(10, [&](int64_t begin, int64_t end, int) { std::fill(&second[begin], &second[0] + end, std::this_thread::get_id()); });
  EXPECT_EQ(first, second);
  EXPECT_NE(first.front(), first.back());
}

TEST(WorkerPool, RunsThousandsOfRounds) {
  WorkerPool pool("test", 4);
  int64_t sums[4] = {};
  for (int round = 0; round < 3000; ++round) pool.parallel_for(4, [&](int64_t begin, int64_t, int) { sums[begin] += round; });
  for (int64_t sum : sums) EXPECT_EQ(sum, 2999 * 3000 / 2);
}

TEST(WorkerPool, CarriesTheLowestWorkersExceptionAndGoesOn) {
  WorkerPool pool("test", 3);
  std::atomic<int> finished = 0;
  try {
    pool.parallel_for(3, [&](int64_t begin, int64_t, int) {
      if (begin > 0) throw std::runtime_error("part " + std::to_string(begin));
      ++finished;
    });
    FAIL() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "part 1");
  }
  pool.parallel_for(3, [&](int64_t, int64_t, int) { ++finished; });
  EXPECT_EQ(finished, 4);
}

TEST(WorkerPool, TakesCallersOneAfterAnother) {
  WorkerPool pool("test", 2);
  int total[2] = {};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller)
    callers.emplace_back([&] {
      for (int i = 0; i < 100; ++i) pool.parallel_for(2, [&](int64_t begin, int64_t, int) { ++total[begin]; });
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(total[0], 400);
  EXPECT_EQ(total[1], 400);
}

TEST(WorkerPool, PinsItsThreadsAndFlushesDenormals) {
  const int cpu = hardware::allowed_cpus().back();
  WorkerPool pool("test", std::vector<int>{cpu});
  std::vector<int> allowed;
  unsigned control = 0;
  pool.parallel_for(1, [&](int64_t, int64_t, int) {
    allowed = hardware::allowed_cpus();
    control = _mm_getcsr();
  });
  EXPECT_EQ(allowed, std::vector<int>{cpu});
  EXPECT_EQ(control & 0x8040, 0x8040u);
}

TEST(WorkerPool, RunsUnpinnedWhereAProcessorDoesNotExist) {
  WorkerPool pool("test", std::vector<int>{8000});
  bool ran = false;
  pool.parallel_for(1, [&](int64_t, int64_t, int) { ran = true; });
  EXPECT_TRUE(ran);
}

}  // namespace
}  // namespace oom::memory
