/// Moves and sums bytes between the memories of one machine: host to GPU, GPU to host, GPU to GPU, all by address; and works on training state
/// where it lies in a rank's device memory, as the host's update threads do on theirs. On the CPU device every memory is host memory and a call has worked when it returns; on CUDA it enqueues on `stream` (a cudaStream_t) and returns.
/// Peer copies go by copy engine: they take no multiprocessors from the GEMMs beside them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "oom/plan.h"
#include "optim/adamw.h"

namespace oom::comm {

class DeviceTransfer {
 public:
  virtual ~DeviceTransfer();
  /// Touches no device before its first copy. Throws ConfigError when this build cannot run on `device`.
  static std::unique_ptr<DeviceTransfer> make(DeviceKind device);
  /// For programs that are only priced: never moves anything, and needs neither device nor CUDA build.
  static std::unique_ptr<DeviceTransfer> for_planning();

  /// Copies `bytes` in pieces of `chunk_bytes`, so that copies of other streams get their turn in between. Host memory must be registered.
  virtual void copy(void* to, const void* from, int64_t bytes, int64_t chunk_bytes, void* stream) = 0;
  virtual void zero(void* data, int64_t bytes, void* stream) = 0;
  /// out[i] = sum of partials[.][i] in FP32, in order, rounded once; out may be one of the partials when the types agree.
  /// *sum_of_squares receives the FP32 sums' squares added in double, in an order that depends on nothing; finite if and only if every sum is.
  /// `sum_of_squares` has 64 bytes, `scratch` reduction_scratch_bytes(count); both null: not wanted.
  virtual void sum_partials(void* out, ElementType out_type, std::span<const void* const> partials, ElementType partial_type, int64_t count,
                            double* sum_of_squares, void* scratch, void* stream) = 0;
  /// Copies `rows` pieces of `width` bytes each; pieces begin `from_pitch` and `to_pitch` bytes apart.
  virtual void copy_rows(void* to, int64_t to_pitch, const void* from, int64_t from_pitch, int64_t width, int64_t rows, void* stream) = 0;

  /// AdamW of `ranges` of a shard in this device's memory, one pass each, in the written order of optim/adamw.h; the clipping factor is the job's
  /// scale. Changes nothing, and publishes nothing, where *sum_of_squares of the gradient (this device's memory) is not finite.
  virtual void update_state(const optim::AdamWJob& job, std::span<const optim::ElementRange> ranges, const double* sum_of_squares, void* stream) = 0;
  /// Makes all working weights of a shard from its masters, both in this device's memory.
  virtual void make_weights(const optim::StateBlocks& state, const optim::Publish& publish, void* stream) = 0;

  /// A partial sum for each 4096 elements, on every device alike, so that plans do not depend on the build.
  static constexpr int64_t reduction_scratch_bytes(int64_t count) { return 8 * (count / 4096 + 2); }
};

}  // namespace oom::comm
