/// A pseudo-random order of 0..count-1 that needs no table: any element of it is computed on its own, alike on every platform.
///
/// A Feistel network of eight rounds over 2 x b bits (b >= 4, the smallest with 4^b >= count), whose round function is splitmix64's
/// finaliser of the right half combined with a round key; results of `count` or more are fed in again until one lies below it ("cycle
/// walking"). Keys come from (seed, epoch) through the same finaliser.
#pragma once

#include <array>
#include <cstdint>

namespace oom::data {

class Permutation {
 public:
  /// `count` > 0. Equal arguments give equal orders, today and in later versions: resumed runs depend on it.
  Permutation(int64_t count, uint64_t seed, int64_t epoch);
  /// Returns element `index` of the order; 0 <= index < count.
  int64_t operator()(int64_t index) const;

 private:
  uint64_t count_;
  int half_bits_;
  std::array<uint64_t, 8> keys_;
};

}  // namespace oom::data
