/// How fast a GPU computes, given how much of the last moments it has been computing.
#pragma once

#include "oom/cost_table.h"

namespace oom::program {

/// Remembers the share of time that one compute lane was busy, with a weight that falls by e each kMemory seconds. At first it was always busy.
class ComputeClock {
 public:
  /// Blocks of products 20 and 100 ms long, with pauses between them, on an H200 at 700 W: within 100 ms the clock has fallen, within 20 ms it has not.
  static constexpr double kMemory = 0.03;

  void advance(double seconds, bool busy);
  /// Returns what a compute stage takes that begins now and takes about `work` seconds, as a share of what it takes on a lane that is always busy: that of its middle.
  double seconds(const CostTable& table, double work) const;

 private:
  double share_ = 1;
};

}  // namespace oom::program
