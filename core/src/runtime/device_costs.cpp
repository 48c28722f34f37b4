#include "runtime/device_costs.h"

namespace oom::runtime {

CostTable analytic_costs(DeviceKind device) {
  CostTable costs;
  if (device == DeviceKind::kCuda) return costs;
  // Every place is host memory, so all traffic comes out of the DRAM's rate and copies are no faster than memcpy on one core.
  costs.gemm_flops = 100e9;
  costs.attention_flops = 50e9;
  costs.other_flops = 4e9;
  costs.hbm_bytes = 10e9;
  costs.h2d_bytes = 5e9;
  costs.d2h_bytes = 5e9;
  costs.pcie_bytes = 10e9;
  costs.peer_bytes = 5e9;
  costs.host_io_bytes = 10e9;
  costs.host_dram_bytes = 20e9;
  costs.pool_weight = 1;
  costs.update_parameters = 0.5e9;
  return costs;
}

}  // namespace oom::runtime
