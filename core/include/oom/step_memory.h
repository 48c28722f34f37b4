/// Where a program's buffers are while it runs. Persistent buffers have an address from preparation on; a transient buffer is a slot
/// that holds tensors between its first writer and its last reader. Stage actions reach their data through here and nothing else.
/// Thread rule: a slot is touched by its rank's compute lane only; addresses are constant.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "oom/stage.h"
#include "oom/sublayer.h"

namespace oom {
inline namespace abi_1 {

/// What a transient buffer may hold: the member its writer fills is the one its readers use.
struct SlotValue {
  at::Tensor tensor;
  Saved saved;
  Keep keep;
  Routing routing;
  FeedForwardFront front;
  CarriedState state;
};

class OOM_API StepMemory {
 public:
  explicit StepMemory(bool cuda);
  ~StepMemory();

  /// The address of a persistent buffer. Throws Error before it is bound.
  void* data(BufferId buffer) const;
  /// A borrowed tensor over `buffer` at `offset_bytes`, on the buffer's device.
  at::Tensor view(BufferId buffer, at::ScalarType type, at::IntArrayRef shape, int64_t offset_bytes = 0) const;
  /// The slot of a transient buffer.
  SlotValue& slot(BufferId buffer);

  /// Called by the engine: device index of a buffer's memory (-1: host) and its address.
  void bind(BufferId buffer, void* address, int device);
  void resize(size_t buffers);
  void release(BufferId buffer);

 private:
  struct Binding {
    void* address = nullptr;
    int device = -1;
  };
  bool cuda_;
  std::vector<Binding> bindings_;
  std::vector<SlotValue> slots_;
};

}  // namespace abi_1
}  // namespace oom
