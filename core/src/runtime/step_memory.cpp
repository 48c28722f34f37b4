#include "oom/step_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

namespace oom {
inline namespace abi_1 {

StepMemory::StepMemory(bool cuda) : cuda_(cuda) {}
StepMemory::~StepMemory() = default;

void StepMemory::resize(size_t buffers) {
  bindings_.resize(buffers);
  slots_.resize(buffers);
}

void StepMemory::bind(BufferId buffer, void* address, int device) { bindings_.at(buffer) = {address, device}; }

void* StepMemory::data(BufferId buffer) const {
  if (const at::Tensor& slot = slots_.at(buffer).tensor; slot.defined()) {
    OOM_CHECK(slot.is_contiguous(), "the tensor in slot ", buffer, " is not dense");
    return slot.data_ptr();
  }
  void* address = bindings_.at(buffer).address;
  OOM_CHECK(address != nullptr, "buffer ", buffer, " has no memory");
  return address;
}

at::Tensor StepMemory::view(BufferId buffer, at::ScalarType type, at::IntArrayRef shape, int64_t offset_bytes) const {
  if (is_reserved(buffer)) {
    const int64_t bytes = c10::multiply_integers(shape) * static_cast<int64_t>(c10::elementSize(type));
    return slots_[buffer].tensor.narrow(0, offset_bytes, bytes).view(type).view(shape);
  }
  const int device = bindings_.at(buffer).device;
  const bool on_gpu = cuda_ && device >= 0;
  const at::TensorOptions options = at::TensorOptions().dtype(type).device(on_gpu ? c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device)) : c10::Device(c10::kCPU));
  char* address = static_cast<char*>(data(buffer)) + offset_bytes;
  return at::for_blob(address, shape).options(options).target_device(options.device()).make_tensor();
}

SlotValue& StepMemory::slot(BufferId buffer) { return slots_.at(buffer); }
void StepMemory::reserve(BufferId buffer, int64_t bytes, at::Device device) {
  slots_.at(buffer).tensor = at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(device));
}
bool StepMemory::is_reserved(BufferId buffer) const { return slots_.at(buffer).tensor.defined() && slots_[buffer].tensor.scalar_type() == at::kByte; }
void StepMemory::release(BufferId buffer) { slots_.at(buffer) = SlotValue{}; }

}  // namespace abi_1
}  // namespace oom
