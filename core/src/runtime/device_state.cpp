#include "runtime/device_state.h"

#include <algorithm>
#include <cstring>

namespace oom::runtime {
namespace {

constexpr int kPieces = 4;  // threads of a rank's state that copy at once
constexpr int64_t kPieceBytes = DeviceState::kStagingBytes / kPieces;
constexpr int64_t kFloatBytes = sizeof(float);
constexpr int64_t kRowBytes = optim::kBlockParameters * kFloatBytes;  // a part of a block
constexpr int64_t kPitch = optim::kBlockFloats * kFloatBytes;         // to the same part of the next block

}  // namespace

/// Holds a piece of staging for as long as it lives.
class DeviceState::Piece {
 public:
  Piece(DeviceState& owner, int rank) : owner_(owner), rank_(rank) {
    std::unique_lock lock(owner_.mutex_);
    owner_.returned_.wait(lock, [&] { return !owner_.free_[rank].empty(); });
    data_ = owner_.free_[rank].back();
    owner_.free_[rank].pop_back();
  }
  ~Piece() {
    {
      const std::lock_guard lock(owner_.mutex_);
      owner_.free_[rank_].push_back(data_);
    }
    owner_.returned_.notify_one();
  }
  Piece(const Piece&) = delete;
  Piece& operator=(const Piece&) = delete;
  float* data() const { return reinterpret_cast<float*>(data_); }

 private:
  DeviceState& owner_;
  int rank_;
  std::byte* data_;
};

DeviceState::DeviceState(DeviceRuntime& device, comm::DeviceTransfer& transfer, const std::vector<std::byte*>& staging) : device_(device), transfer_(transfer), free_(staging.size()) {
  for (size_t rank = 0; rank < staging.size(); ++rank) {
    for (int piece = 0; staging[rank] != nullptr && piece < kPieces; ++piece) free_[rank].push_back(staging[rank] + piece * kPieceBytes);
  }
}

// A part of the state is a row in each block: what begins or ends inside a block goes on its own, whole blocks go together.
template <typename Move>
void DeviceState::for_each_part(int rank, const optim::StateBlocks& state, optim::StatePart part, int64_t begin, int64_t count, const Move& move) {
  OOM_CHECK(begin >= 0 && count >= 0 && begin + count <= state.count(), "elements ", begin, " to ", begin + count, " of a shard of ", state.count());
  const Piece piece(*this, rank);
  for (int64_t at = 0; at < count;) {
    const int64_t in_block = (begin + at) % optim::kBlockParameters;
    const int64_t whole = std::min(count - at, kPieceBytes / kFloatBytes) / optim::kBlockParameters;
    const bool partial = in_block != 0 || whole == 0;
    const int64_t width = partial ? std::min(count - at, optim::kBlockParameters - in_block) : optim::kBlockParameters;
    const int64_t rows = partial ? 1 : whole;
    move(piece.data(), state.at(part, begin + at), width * kFloatBytes, rows, at);
    at += width * rows;
  }
}

void DeviceState::read(int rank, const optim::StateBlocks& state, optim::StatePart part, int64_t begin, std::span<float> out) {
  for_each_part(rank, state, part, begin, static_cast<int64_t>(out.size()), [&](float* staging, const float* from, int64_t width, int64_t rows, int64_t at) {
    device_.run(rank, [&](void* stream) { transfer_.copy_rows(staging, kRowBytes, from, kPitch, width, rows, stream); });
    std::memcpy(out.data() + at, staging, static_cast<size_t>(width * rows));
  });
}

void DeviceState::write(int rank, const optim::StateBlocks& state, optim::StatePart part, int64_t begin, std::span<const float> in) {
  for_each_part(rank, state, part, begin, static_cast<int64_t>(in.size()), [&](float* staging, float* to, int64_t width, int64_t rows, int64_t at) {
    std::memcpy(staging, in.data() + at, static_cast<size_t>(width * rows));
    device_.run(rank, [&](void* stream) { transfer_.copy_rows(to, kPitch, staging, kRowBytes, width, rows, stream); });
  });
}

void DeviceState::clear(int rank, const optim::StateBlocks& state) { device_.fill(rank, reinterpret_cast<std::byte*>(state.data()), 0, optim::state_bytes(state.count())); }

void DeviceState::publish(int rank, const optim::StateBlocks& state, const optim::Publish& publish) {
  device_.run(rank, [&](void* stream) { transfer_.make_weights(state, publish, stream); });
}

}  // namespace oom::runtime
