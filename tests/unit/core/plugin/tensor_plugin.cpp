// Makes tensors on the device that the host names: operators of both devices must be reachable from a plugin.
#include <ATen/ops/arange.h>

#include "probe.h"

namespace {

class TensorMaker : public Probe {
 public:
  explicit TensorMaker(const oom::HostServices& services) : device_(services.device == oom::DeviceKind::kCuda ? at::kCUDA : at::kCPU) {}
  /// Returns 0 + 1 + ... + question, summed on the device.
  int answer(int question) override { return at::arange(question + 1, at::TensorOptions(device_).dtype(at::kInt)).sum().item().toInt(); }

 private:
  const at::DeviceType device_;
};

}  // namespace

OOM_PLUGIN(TensorMaker, oom::Kind::kExpertStrategy, "tensor_maker", "1.0.0", "Makes tensors")
