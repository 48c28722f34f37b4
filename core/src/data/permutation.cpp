#include "data/permutation.h"

#include <algorithm>
#include <bit>

#include "oom/error.h"

namespace oom::data {
namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;

// The finaliser of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

}  // namespace

Permutation::Permutation(int64_t count, uint64_t seed, int64_t epoch) : count_(static_cast<uint64_t>(count)) {
  OOM_CHECK_GT(count, 0);
  half_bits_ = std::max(4, (static_cast<int>(std::bit_width(count_ - 1)) + 1) / 2);
  uint64_t state = mix(mix(seed + kGolden) + static_cast<uint64_t>(epoch) * kGolden);
  for (uint64_t& key : keys_) key = mix(state += kGolden);
}

int64_t Permutation::operator()(int64_t index) const {
  OOM_CHECK(index >= 0 && static_cast<uint64_t>(index) < count_, index, " of ", count_);
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t value = static_cast<uint64_t>(index);
  do {
    uint64_t left = value >> half_bits_;
    uint64_t right = value & mask;
    for (const uint64_t key : keys_) {
      const uint64_t next = left ^ (mix((right + kGolden) ^ key) & mask);
      left = right;
      right = next;
    }
    value = left << half_bits_ | right;
  } while (value >= count_);
  return static_cast<int64_t>(value);
}

}  // namespace oom::data
