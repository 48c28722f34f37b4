/// How the optimizer state of a shard lies in memory, on the host and on the GPU alike.
///
/// A shard of `count` parameters is one contiguous range of blocks. A block holds 4096 parameters as
/// [m 16 KiB | v 16 KiB | w 16 KiB], FP32: first moment, second moment, master weight. One thread that walks a shard reads and writes one
/// stream of memory instead of three. The last block is padded to full size; its padding is never read as a parameter.
/// StateBlocks is a view: it owns nothing. The range must be 64-byte aligned and hold state_bytes(count) bytes.
#pragma once

#include <cstdint>
#include <span>

namespace oom::optim {

inline constexpr int64_t kBlockParameters = 4096;
inline constexpr int64_t kBlockFloats = 3 * kBlockParameters;

/// Returns the number of blocks, floats and bytes that the state of `count` parameters takes.
constexpr int64_t state_blocks(int64_t count) { return (count + kBlockParameters - 1) / kBlockParameters; }
constexpr int64_t state_floats(int64_t count) { return state_blocks(count) * kBlockFloats; }
constexpr int64_t state_bytes(int64_t count) { return state_floats(count) * static_cast<int64_t>(sizeof(float)); }

/// The three parts of a block, in the order in which they lie.
enum class StatePart : int { kFirstMoment = 0, kSecondMoment = 1, kMaster = 2 };

struct ElementRange {
  int64_t begin = 0;
  int64_t end = 0;
};

class StateBlocks {
 public:
  StateBlocks() = default;
  StateBlocks(float* data, int64_t count) : data_(data), count_(count) {}

  float* data() const { return data_; }
  int64_t count() const { return count_; }

  /// Returns the address of element `index` of a part; the elements up to the next multiple of 4096 follow it.
  float* at(StatePart part, int64_t index) const {
    return data_ + index / kBlockParameters * kBlockFloats + static_cast<int64_t>(part) * kBlockParameters + index % kBlockParameters;
  }

  /// Copies elements [begin, begin + out.size()) of a part into `out`. Host memory only, as all that follow.
  void copy_out(StatePart part, int64_t begin, std::span<float> out) const;
  /// Copies `in` over elements [begin, begin + in.size()) of a part.
  void copy_in(StatePart part, int64_t begin, std::span<const float> in) const;
  /// Sets elements [begin, end) of a part.
  void fill(StatePart part, int64_t begin, int64_t end, float value) const;
  /// Sets the padding of the last block to zero, so that whole blocks can be compared and summed.
  void clear_padding() const;

 private:
  float* data_ = nullptr;
  int64_t count_ = 0;
};

}  // namespace oom::optim
