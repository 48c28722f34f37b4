/// Where a program's buffers are while it runs. Persistent buffers have an address from preparation on; a transient buffer is a slot
/// that holds tensors between its first writer and its last user. Stage actions reach their data through here and nothing else.
/// Thread rule: a slot is filled and emptied by its rank's compute lane; other lanes may ask for its data() in between. Addresses of persistent buffers are constant.
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

  /// The address of a persistent buffer, or of the dense tensor in a slot. Throws Error where there is none.
  void* data(BufferId buffer) const;
  /// A tensor over `buffer` at `offset_bytes`, on the buffer's device: borrowed from a persistent buffer, shared with a slot that reserve() filled.
  at::Tensor view(BufferId buffer, at::ScalarType type, at::IntArrayRef shape, int64_t offset_bytes = 0) const;
  /// The slot of a transient buffer.
  SlotValue& slot(BufferId buffer);
  /// Fills a slot's `tensor` with memory of so many bytes whose content is for others to write: uint8 [bytes].
  void reserve(BufferId buffer, int64_t bytes, at::Device device);
  bool is_reserved(BufferId buffer) const;

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
