#include "hardware/host_bandwidth.h"

#include <gtest/gtest.h>

#include "hardware/thread_placement.h"

namespace oom::hardware {
namespace {

TEST(HostBandwidth, MeasuresSomethingPlausible) {
  const HostBandwidth bandwidth = measure_host_bandwidth(allowed_cpus(), 4 << 20);
  for (double gb_s : {bandwidth.read_gb_s, bandwidth.write_gb_s, bandwidth.copy_gb_s}) {
    EXPECT_GT(gb_s, 0.05);
    EXPECT_LT(gb_s, 20000);
  }
}

TEST(HostBandwidth, RunsUnpinnedWithoutProcessors) { EXPECT_GT(measure_host_bandwidth({}, 1 << 20).read_gb_s, 0); }

}  // namespace
}  // namespace oom::hardware
