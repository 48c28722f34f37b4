#include "hardware/machine_fingerprint.h"

#include <fstream>

#include "oom/error.h"

namespace oom::hardware {
namespace {

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (line.starts_with("model name") && colon != std::string::npos && colon + 2 < line.size()) return line.substr(colon + 2);
  }
  return "an unnamed processor";
}

}  // namespace

std::string machine_fingerprint(const GpuList& gpus, const Topology& topology) {
  std::string text;
  for (size_t first = 0; first < gpus.gpus.size();) {
    const GpuInfo& gpu = gpus.gpus[first];
    size_t end = first;
    while (end < gpus.gpus.size() && gpus.gpus[end].name == gpu.name) ++end;
    text += cat(end - first, " x ", gpu.name, " (", gpu.memory_bytes >> 30, " GiB), ");
    first = end;
  }
  const size_t nodes = topology.nodes.size();
  return cat(text, topology.core_count(), " cores of ", processor_name(), ", ", nodes, nodes == 1 ? " NUMA node" : " NUMA nodes");
}

}  // namespace oom::hardware
