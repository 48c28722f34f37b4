#include "hardware/gpu.h"

#include <gtest/gtest.h>

#include "oom/error.h"

namespace oom::hardware {
namespace {

TEST(Gpu, ListsDevicesOrSaysWhyThereAreNone) {
  const GpuList list = list_gpus();
  EXPECT_EQ(list.gpus.empty(), !list.why_none.empty());
  for (const GpuInfo& gpu : list.gpus) {
    EXPECT_FALSE(gpu.name.empty());
    EXPECT_GT(gpu.memory_bytes, int64_t{1} << 30);
    EXPECT_GT(gpu.multiprocessors, 0);
    EXPECT_GE(gpu.compute_major, 5);
    EXPECT_NE(gpu.pci_bus_id.find(':'), std::string::npos);
    EXPECT_TRUE(list.peer_access[gpu.index][gpu.index]);
  }
}

TEST(Gpu, MeasuresItsLink) {
  const GpuList list = list_gpus();
  if (list.gpus.empty()) GTEST_SKIP() << "no GPU: " << list.why_none;
  const GpuLinkBandwidth link = measure_gpu_link(0, 64 << 20);
  for (double gb_s : {link.h2d_gb_s, link.d2h_gb_s, link.both_h2d_gb_s, link.both_d2h_gb_s}) EXPECT_GT(gb_s, 1.0);
  EXPECT_GT(gpu_free_bytes(0), 0);
  if (list.gpus.size() > 1 && list.peer_access[0][1]) {
    EXPECT_GT(measure_peer_gb_s(0, 1, 64 << 20), 5.0);
  }
}

}  // namespace
}  // namespace oom::hardware
