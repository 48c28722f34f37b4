/// The GPUs of this machine, and how fast bytes move to, from and between them. Uses the CUDA runtime alone.
/// In an engine built for the CPU alone there are never any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace oom::hardware {

struct GpuInfo {
  int index = 0;  ///< CUDA's number in this process
  std::string name;
  std::string pci_bus_id;  ///< "0000:17:00.0", for Topology::node_of_pci_device
  int64_t memory_bytes = 0;
  int multiprocessors = 0;
  int compute_major = 0, compute_minor = 0;
};

struct GpuList {
  std::vector<GpuInfo> gpus;
  std::string why_none;                         ///< the runtime's words when `gpus` is empty
  std::vector<std::vector<bool>> peer_access;   ///< [from][to]: from can map to's memory; the diagonal is true
  int driver_version = 0, runtime_version = 0;  ///< as CUDA writes them: 13000 for 13.0; 0 when there is none
};

/// Never throws for want of a device or driver. Makes no context on the devices.
GpuList list_gpus();

/// Returns the device's free memory now; makes its context when there is none. Throws DeviceError.
int64_t gpu_free_bytes(int gpu);

/// GB/s (10^9 bytes) of each direction.
struct GpuLinkBandwidth {
  double h2d_gb_s = 0;
  double d2h_gb_s = 0;
  double both_h2d_gb_s = 0;  ///< with both directions busy
  double both_d2h_gb_s = 0;
};

/// Copies between pinned memory and one GPU, about `bytes` a pass, best of three. Takes 2 x bytes on both sides. Sets and restores the
/// calling thread's device. Throws DeviceError.
GpuLinkBandwidth measure_gpu_link(int gpu, int64_t bytes = int64_t{256} << 20);
/// Copies from one GPU's memory to another's with the copy engine; 0 when they have no peer access.
double measure_peer_gb_s(int from, int to, int64_t bytes = int64_t{256} << 20);

}  // namespace oom::hardware
