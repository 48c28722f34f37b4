/// Training state that lies in the ranks' device memories, as the host reads and writes it: in pieces through pinned staging of a bounded size, never
/// as a second copy. Safe from several threads at once; waits for a free piece of staging. While no program runs.
#pragma once

#include <condition_variable>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "comm/device_transfer.h"
#include "runtime/device_runtime.h"

namespace oom::runtime {

class DeviceState {
 public:
  /// Host memory of each rank that owns resident state, which programs name and the engine registers for copies.
  static constexpr int64_t kStagingBytes = int64_t{16} << 20;
  static std::string staging_name(int rank) { return cat("access to state on gpu ", rank); }

  /// `staging`: by rank, kStagingBytes each; null where a rank has no resident state.
  DeviceState(DeviceRuntime& device, comm::DeviceTransfer& transfer, const std::vector<std::byte*>& staging);

  void read(int rank, const optim::StateBlocks& state, optim::StatePart part, int64_t begin, std::span<float> out);
  void write(int rank, const optim::StateBlocks& state, optim::StatePart part, int64_t begin, std::span<const float> in);
  void clear(int rank, const optim::StateBlocks& state);
  void publish(int rank, const optim::StateBlocks& state, const optim::Publish& publish);

 private:
  class Piece;
  /// Calls move(staging, device address, bytes a row, rows, position in the range) for parts of [begin, begin + count) that staging holds.
  template <typename Move>
  void for_each_part(int rank, const optim::StateBlocks& state, optim::StatePart part, int64_t begin, int64_t count, const Move& move);

  DeviceRuntime& device_;
  comm::DeviceTransfer& transfer_;
  std::mutex mutex_;
  std::condition_variable returned_;
  std::vector<std::vector<std::byte*>> free_;  // by rank
};

}  // namespace oom::runtime
