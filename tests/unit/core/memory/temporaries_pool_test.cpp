// Temporaries: places from two ends, pages behind them, held against a device that checks every call.
#include "memory/temporaries_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "memory/arena_layout.h"
#include "oom/error.h"

namespace oom::memory {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kPage = 2 * kMiB;

// The requests of a step that was measured: sizes, and releases as the index of what they release.
struct Step {
  std::vector<int64_t> bytes;  // by request; 0 where the event is a release
  std::vector<size_t> releases;

  static Step measured() {
    std::ifstream file(OOM_STEP_REQUESTS);
    Step step;
    std::vector<size_t> requests;
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with('#')) continue;
      std::istringstream words(line);
      for (int64_t word; words >> word;) {
        step.bytes.push_back(std::max<int64_t>(word, 0));
        step.releases.push_back(word > 0 ? 0 : requests.at(requests.size() + static_cast<size_t>(word)));
        if (word > 0) requests.push_back(step.bytes.size() - 1);
      }
    }
    return step;
  }

  int64_t peak() const {
    int64_t now = 0, most = 0;
    for (size_t i = 0; i < bytes.size(); ++i) {
      now += bytes[i] > 0 ? align_up(bytes[i], TwoEndedHeap::kAlignment) : -align_up(bytes[releases[i]], TwoEndedHeap::kAlignment);
      most = std::max(most, now);
    }
    return most;
  }

  void run(TemporariesPool& pool) const {
    std::vector<std::byte*> blocks(bytes.size());
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (bytes[i] > 0) {
        blocks[i] = pool.allocate(bytes[i]);
      } else {
        pool.release(blocks[releases[i]]);
      }
    }
  }
};

// Addresses are never touched. Fails where a page is mapped twice, or one that may be in use is unmapped.
class CheckedPages final : public PageDevice {
 public:
  struct State {
    std::map<int64_t, Page> mapped;
    std::set<Page> pages;
    Page next = 1;
    size_t limit = SIZE_MAX;
    bool waited = true;
    bool fails_to_map = false;
  };
  explicit CheckedPages(State& state) : state_(state) {}
  ~CheckedPages() override { EXPECT_TRUE(state_.mapped.empty()); }
  int64_t page_bytes() const override { return kPage; }
  std::byte* reserve(int64_t) override { return reinterpret_cast<std::byte*>(int64_t{1} << 40); }
  Page create() override {
    if (state_.pages.size() == state_.limit) throw DeviceError("the device is full");
    state_.pages.insert(state_.next);
    return state_.next++;
  }
  void destroy(Page page) override {
    for (const auto& [offset, mapped] : state_.mapped) EXPECT_NE(mapped, page) << "destroyed while mapped at " << offset;
    EXPECT_EQ(state_.pages.erase(page), 1u);
  }
  void map(int64_t offset, Page page) override {
    if (state_.fails_to_map) throw DeviceError("no such mapping");
    EXPECT_EQ(offset % kPage, 0);
    EXPECT_TRUE(state_.pages.contains(page));
    for (const auto& [other, mapped] : state_.mapped) EXPECT_NE(mapped, page) << "at " << other << " and " << offset;
    EXPECT_TRUE(state_.mapped.emplace(offset, page).second) << "two pages at " << offset;
    state_.waited = false;
  }
  void unmap(int64_t offset) override {
    EXPECT_TRUE(state_.waited) << "unmapped while the device may use it";
    EXPECT_EQ(state_.mapped.erase(offset), 1u);
  }
  void wait() override { state_.waited = true; }

 private:
  State& state_;
};

class TemporariesPoolTest : public ::testing::Test {
 protected:
  static constexpr int64_t kAddresses = int64_t{64} << 30;
  CheckedPages::State state_;
  TemporariesPool pool_{std::make_unique<CheckedPages>(state_), kAddresses};
  std::map<std::byte*, int64_t> blocks_;

  void allocate(int64_t bytes) {
    std::byte* block = pool_.allocate(bytes);
    const auto next = blocks_.lower_bound(block);
    EXPECT_TRUE(next == blocks_.end() || block + bytes <= next->first);
    EXPECT_TRUE(next == blocks_.begin() || std::prev(next)->first + std::prev(next)->second <= block);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % TwoEndedHeap::kAlignment, 0u);
    blocks_.emplace(block, bytes);
    expect_mapped();
  }
  std::set<int64_t> pages_in_use() const {
    std::set<int64_t> pages;
    for (const auto& [block, bytes] : blocks_) {
      const int64_t offset = block - reinterpret_cast<std::byte*>(int64_t{1} << 40);
      for (int64_t page = offset / kPage; page * kPage < offset + bytes; ++page) pages.insert(page);
    }
    return pages;
  }
  void expect_mapped() {
    for (const int64_t page : pages_in_use()) EXPECT_TRUE(state_.mapped.contains(page * kPage));
  }
};

TEST(TwoEndedHeapTest, AMeasuredStepTakesHardlyMoreThanItUses) {
  const Step step = Step::measured();
  ASSERT_GT(step.bytes.size(), 3000u);
  RequestLog log;
  for (size_t i = 0; i < step.bytes.size(); ++i) {
    if (step.bytes[i] > 0) {
      log.request(static_cast<int64_t>(i), step.bytes[i]);
    } else {
      log.release(static_cast<int64_t>(step.releases[i]));
    }
  }
  const double peak = static_cast<double>(step.peak());
  EXPECT_LT(static_cast<double>(log.extent_with(log.best_large())), 1.005 * peak);
  EXPECT_GT(static_cast<double>(log.extent_with(int64_t{1} << 60)), 1.05 * peak);
}

TEST_F(TemporariesPoolTest, AfterTheFirstStepAMeasuredStepFitsWhereItJustDoes) {
  const Step step = Step::measured();
  pool_.set_capacity(pool_bytes(step.peak()), pool_bytes(step.peak()));
  step.run(pool_);
  pool_.end_step();
  const int64_t waits = pool_.usage().waits;
  for (int i = 0; i < 3; ++i) {
    step.run(pool_);
    pool_.end_step();
  }
  EXPECT_EQ(pool_.usage().waits, waits);
  EXPECT_EQ(pool_.usage().in_use, 0);
  EXPECT_EQ(pool_.usage().peak_in_use, step.peak());
  EXPECT_LE(pool_.usage().peak_mapped, pool_bytes(step.peak()));
}

TEST_F(TemporariesPoolTest, TheFirstStepTakesWhatAPoolOfItsPeakTakesWhateverMayBeTaken) {
  const Step step = Step::measured();
  pool_.set_capacity(8 * step.peak(), pool_bytes(step.peak()));
  step.run(pool_);
  EXPECT_LE(pool_.usage().peak_mapped, align_up(pool_bytes(step.peak()), kPage));
  EXPECT_EQ(pool_.usage().waits, 0);
  pool_.end_step();
  std::vector<std::byte*> blocks;  // a later one may
  for (int i = 0; i < 4; ++i) blocks.push_back(pool_.allocate(step.peak() / 2));
  for (std::byte* block : blocks) pool_.release(block);
}

// Blocks that stay for a layer part the room of those that do not, and `expected` / 64 does not tell the two apart.
TEST_F(TemporariesPoolTest, PlacesAreSoughtWithinTheFirstStepWhereItHasToWait) {
  pool_.set_capacity(int64_t{40} << 30, 930 * kMiB);
  std::vector<std::byte*> stays;
  const auto waits_of = [&](int layers) {
    const int64_t before = pool_.usage().waits;
    for (int i = 0; i < layers; ++i) {
      const std::vector<std::byte*> last_layer = std::exchange(stays, {});
      std::byte* first = pool_.allocate(300 * kMiB);
      stays.push_back(pool_.allocate(30 * kMiB));
      std::byte* second = pool_.allocate(500 * kMiB);
      pool_.release(first);
      stays.push_back(pool_.allocate(30 * kMiB));
      std::byte* third = pool_.allocate(290 * kMiB);
      pool_.release(second);
      pool_.release(third);
      for (std::byte* block : last_layer) pool_.release(block);
    }
    return pool_.usage().waits - before;
  };
  const int64_t first = waits_of(10);
  EXPECT_GT(first, 0);
  EXPECT_EQ(waits_of(10), 0) << "after " << first;
  for (std::byte* block : stays) pool_.release(block);
}

TEST_F(TemporariesPoolTest, ALaterStepThatHasToWaitChangesPlacesToo) {
  const auto step = [&](int64_t stays) {
    std::vector<std::byte*> kept;
    const int64_t before = pool_.usage().waits;
    for (int i = 0; i < 5; ++i) {
      std::byte* first = pool_.allocate(300 * kMiB);
      std::byte* second = pool_.allocate(500 * kMiB);
      pool_.release(first);
      kept.push_back(pool_.allocate(stays));
      std::byte* third = pool_.allocate(290 * kMiB);
      pool_.release(second);
      pool_.release(third);
    }
    for (std::byte* block : kept) pool_.release(block);
    pool_.end_step();
    return pool_.usage().waits - before;
  };
  pool_.set_capacity(1000 * kMiB, 900 * kMiB);
  (void)step(kMiB);
  EXPECT_EQ(step(kMiB), 0);
  EXPECT_GT(step(30 * kMiB), 0);
  (void)step(30 * kMiB);
  EXPECT_EQ(step(30 * kMiB), 0);
}

// Though a size between would save room in this very step.
TEST(RequestLogTest, SizesThatRoutingVariesStayOnOneSide) {
  RequestLog log;
  for (int64_t i = 0; i < 15; i += 3) {
    log.request(i, 300 * kMiB);
    log.request(i + 1, 310 * kMiB);
    log.release(i);
    log.request(i + 2, 305 * kMiB);
    log.release(i + 2);
  }
  ASSERT_LT(log.extent_with(307 * kMiB), log.extent_with(kMiB));
  const int64_t large = log.best_large();
  EXPECT_TRUE(large <= 300 * kMiB || large > 310 * kMiB) << large;
}

TEST_F(TemporariesPoolTest, AFullDeviceServesFromWhatIsFree) {
  pool_.set_capacity(100 * kMiB, 40 * kMiB);
  std::byte* small = pool_.allocate(18 * kMiB);
  std::byte* other = pool_.allocate(20 * kMiB);
  pool_.end_step();
  state_.limit = state_.pages.size();
  pool_.release(small);
  pool_.release(other);
  std::byte* large = pool_.allocate(36 * kMiB);
  pool_.release(large);
}

TEST_F(TemporariesPoolTest, AFaultOfTheDeviceIsToldAsItIsAndLeavesNoTrace) {
  pool_.set_capacity(64 * kMiB, 64 * kMiB);
  state_.fails_to_map = true;
  try {
    pool_.allocate(8 * kMiB);
    ADD_FAILURE();
  } catch (const DeviceError& error) {
    EXPECT_STREQ(error.what(), "no such mapping");
  }
  state_.fails_to_map = false;
  pool_.release(pool_.allocate(64 * kMiB));
  state_.waited = false;
  pool_.set_capacity(0, 0);
  EXPECT_TRUE(state_.pages.empty());
}

TEST_F(TemporariesPoolTest, AFirstStepThatNeedsMoreThanExpectedHasIt) {
  pool_.set_capacity(64 * kMiB, 16 * kMiB);
  std::byte* first = pool_.allocate(12 * kMiB);
  std::byte* second = pool_.allocate(24 * kMiB);
  EXPECT_EQ(pool_.usage().waits, 0);
  pool_.release(first);
  pool_.release(second);
}

TEST_F(TemporariesPoolTest, AnyOrderOfRequestsKeepsEveryBlockMappedAndApart) {
  std::mt19937_64 random(7);
  pool_.set_capacity(300 * kMiB, 300 * kMiB);
  for (int step = 0; step < 20; ++step) {
    for (int i = 0; i < 300; ++i) {
      const int64_t bytes = 1 + static_cast<int64_t>(random() % (random() % 8 == 0 ? 60 * kMiB : random() % 2 == 0 ? 5 * kMiB : 3000));
      if (random() % 5 < 2 && !blocks_.empty()) {
        const auto block = std::next(blocks_.begin(), static_cast<int64_t>(random() % blocks_.size()));
        pool_.release(block->first);
        blocks_.erase(block);
      } else {
        try {
          allocate(bytes);
        } catch (const DeviceError&) {
          EXPECT_GT(static_cast<int64_t>(pages_in_use().size() + 1) * kPage + bytes, 300 * kMiB) << "refused though there was room";
        }
      }
      EXPECT_LE(static_cast<int64_t>(state_.pages.size()) * kPage, 300 * kMiB);
    }
    pool_.end_step();
    expect_mapped();
  }
  EXPECT_GT(pool_.usage().waits, 0) << "the capacity was never short: this tests less than it says";
  for (const auto& [block, bytes] : blocks_) pool_.release(block);
  state_.waited = false;  // what was released may be in use still
  pool_.set_capacity(0, 0);
  EXPECT_TRUE(state_.pages.empty());
}

TEST_F(TemporariesPoolTest, WhatIsLeftInPiecesServesOneLargeRequest) {
  pool_.set_capacity(100 * kMiB, 100 * kMiB);
  std::vector<std::byte*> blocks;
  for (int i = 0; i < 10; ++i) blocks.push_back(pool_.allocate(10 * kMiB));
  for (int i = 0; i < 10; i += 2) pool_.release(blocks[i]);
  std::byte* large = pool_.allocate(40 * kMiB);
  EXPECT_EQ(pool_.usage().waits, 1);
  EXPECT_THROW(pool_.allocate(20 * kMiB), DeviceError);
  pool_.release(large);
  for (int i = 1; i < 10; i += 2) pool_.release(blocks[i]);
}

TEST_F(TemporariesPoolTest, WhatDoesNotFitIsRefusedWithNumbersAndChangesNothing) {
  pool_.set_capacity(64 * kMiB, 64 * kMiB);
  std::byte* block = pool_.allocate(40 * kMiB);
  for (int i = 0; i < 2; ++i) {
    try {
      pool_.allocate(32 * kMiB);
      ADD_FAILURE() << "more than the capacity was given";
    } catch (const DeviceError& error) {
      EXPECT_NE(std::string(error.what()).find("32.0 MiB more are needed beside 40.0 MiB in use; 64.0 MiB may be taken"), std::string::npos) << error.what();
    }
  }
  std::byte* rest = pool_.allocate(24 * kMiB);
  pool_.release(rest);
  pool_.release(block);
  EXPECT_EQ(pool_.usage().in_use, 0);
}

TEST_F(TemporariesPoolTest, ADeviceThatIsFullIsToldAsSuch) {
  state_.limit = 4;
  pool_.set_capacity(64 * kMiB, 64 * kMiB);
  std::byte* block = pool_.allocate(8 * kMiB);
  try {
    pool_.allocate(2 * kMiB);
    ADD_FAILURE();
  } catch (const DeviceError& error) {
    EXPECT_NE(std::string(error.what()).find("the device is full"), std::string::npos) << error.what();
  }
  pool_.release(block);
}

}  // namespace
}  // namespace oom::memory
