#include "memory/host_arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <bit>

#include "hardware/thread_placement.h"
#include "oom/error.h"
#include "optim/bf16.h"

namespace oom::memory {
namespace {

using ::testing::HasSubstr;

/// Notes what is registered; refuses ranges above a size.
class FakeRegistry : public PinnedRegistry {
 public:
  explicit FakeRegistry(int64_t largest = int64_t{1} << 60) : largest_(largest) {}
  void register_range(std::byte* data, int64_t bytes, const std::function<void(int64_t)>& done) override {
    if (bytes > largest_) throw DeviceError("memory: cudaHostRegister: out of memory");
    ranges.push_back({data, bytes});
    done(bytes);
  }
  void unregister_range(std::byte* data) noexcept override {
    std::erase_if(ranges, [&](const ByteRange& range) { return range.data == data; });
  }
  std::vector<ByteRange> ranges;

 private:
  int64_t largest_;
};

int64_t resident_pages(const std::byte* data, int64_t bytes) {
  std::vector<unsigned char> pages((bytes + 4095) / 4096);
  EXPECT_EQ(mincore(const_cast<std::byte*>(data), bytes, pages.data()), 0);
  return std::ranges::count_if(pages, [](unsigned char page) { return (page & 1) != 0; });
}

HostArenaOptions two_nodes(int64_t first, int64_t second) {
  HostArenaOptions options;
  options.nodes = {{first, 0, hardware::allowed_cpus()}, {second, -1, {}}};
  return options;
}

TEST(HostArena, PinsWhatWasAskedAndNoMoreThanOnePercent) {
  FakeRegistry registry;
  const int64_t asked = (20 << 20) + 12345 + (3 << 20) + 1;
  {
    HostArenaOptions options = two_nodes((20 << 20) + 12345, (3 << 20) + 1);
    options.registry = &registry;
    const HostArena arena(options);
    int64_t pinned = 0;
    for (const ByteRange& range : registry.ranges) pinned += range.bytes;
    EXPECT_EQ(registry.ranges.size(), 2u);
    EXPECT_EQ(pinned, arena.mapped_bytes());
    EXPECT_GE(pinned, asked);
    EXPECT_LE(static_cast<double>(pinned) / static_cast<double>(asked), 1.01);
  }
  EXPECT_TRUE(registry.ranges.empty());
}

TEST(HostArena, IsTouchedZeroAndOnHugePageBorders) {
  HostArena arena(two_nodes(5 << 20, 4096));
  const std::byte* data = arena.allocate(0, "all", "state", 5 << 20);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % kHugePageBytes, 0u);
  EXPECT_EQ(resident_pages(data, 5 << 20), (5 << 20) / 4096);
  EXPECT_EQ(std::count(data, data + (5 << 20), std::byte{0}), 5 << 20);
}

TEST(HostArena, MapsNothingBeyondItsEnd) {
  HostArena arena(two_nodes(3 * 4096, 0));
  const std::byte* data = arena.allocate(0, "all", "state", 3 * 4096);
  unsigned char page = 0;
  EXPECT_EQ(mincore(const_cast<std::byte*>(data) + 2 * 4096, 4096, &page), 0);
  EXPECT_EQ(arena.mapped_bytes(), 3 * 4096);
}

TEST(HostArena, GivesOutRegionsByNodeAndAccountsForThem) {
  HostArena arena(two_nodes(1 << 20, 1 << 20));
  std::byte* masters = arena.allocate(0, "layer 0", "state", 5000);
  std::byte* counter = arena.allocate(0, "counter", "fixed", 8, kCacheLineBytes);
  std::byte* slot = arena.allocate(1, "slot 0", "gradient", 4096);
  EXPECT_EQ(counter - masters, 5056);
  std::fill_n(slot, 4096, std::byte{1});
  EXPECT_EQ(arena.layout(0).bytes_by_class().at("state"), 5000);
  EXPECT_EQ(arena.layout(1).asked_bytes(), 4096);
  try {
    arena.allocate(1, "slot 1", "gradient", 1 << 20);
    FAIL();
  } catch (const BudgetError& error) {
    EXPECT_THAT(error.what(), HasSubstr("NUMA node 1: 'slot 1' (gradient) needs 1.00 MiB, but 4.00 KiB of 1.00 MiB are taken"));
  }
}

TEST(HostArena, PoisonIsNotANumberInEitherType) {
  HostArenaOptions options = two_nodes(1 << 20, 0);
  options.poison = true;
  HostArena arena(options);
  const auto* floats = reinterpret_cast<const uint32_t*>(arena.allocate(0, "all", "state", 1 << 20));
  for (int64_t i = 0; i < (1 << 18); ++i) ASSERT_EQ(floats[i], kPoison);
  EXPECT_TRUE(std::isnan(std::bit_cast<float>(kPoison)));
  EXPECT_TRUE(std::isnan(optim::float_from_bf16(kPoison >> 16)));
  EXPECT_TRUE(std::isnan(optim::float_from_bf16(kPoison & 0xffff)));
}

TEST(HostArena, ReportsBothPhasesToTheEnd) {
  FakeRegistry registry;
  HostArenaOptions options = two_nodes(1 << 20, 1 << 20);
  options.registry = &registry;
  std::vector<HostArenaProgress> last(2);
  options.progress = [&](const HostArenaProgress& progress) { last[static_cast<int>(progress.phase)] = progress; };
  const HostArena arena(options);
  for (const HostArenaProgress& progress : last) {
    EXPECT_EQ(progress.total_bytes, 2 << 20);
    EXPECT_EQ(progress.done_bytes, 2 << 20);
  }
}

TEST(HostArena, AFailedRegistrationLeavesNothingRegistered) {
  FakeRegistry registry(1 << 20);
  HostArenaOptions options = two_nodes(1 << 20, 2 << 20);
  options.registry = &registry;
  EXPECT_THROW(HostArena{options}, DeviceError);
  EXPECT_TRUE(registry.ranges.empty());
}

TEST(HostArena, ATotalAboveTheCgroupLimitIsRefusedBeforeAnythingIsTouched) {
  HostArenaOptions options = two_nodes(int64_t{60} << 30, int64_t{60} << 30);
  options.limits.emplace();
  options.limits->memory_available_bytes = int64_t{200} << 30;
  options.limits->cgroup_limit_bytes = int64_t{100} << 30;
  EXPECT_THROW(HostArena{options}, BudgetError);
}

TEST(HostArena, AddressSpaceThatIsRefusedIsABudgetError) {
  HostArenaOptions options = two_nodes(int64_t{1} << 50, 0);
  options.limits.emplace();
  try {
    const HostArena arena(options);
    FAIL();
  } catch (const BudgetError& error) {
    EXPECT_THAT(error.what(), HasSubstr("memory: NUMA node 0: 1024 TiB could not be mapped: Cannot allocate memory"));
    EXPECT_THAT(error.what(), HasSubstr("ulimit -v"));
  }
}

}  // namespace
}  // namespace oom::memory
