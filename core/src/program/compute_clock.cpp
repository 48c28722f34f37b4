#include "program/compute_clock.h"

#include <cmath>

namespace oom::program {

void ComputeClock::advance(double seconds, bool busy) {
  const double kept = std::exp(-seconds / kMemory);
  share_ = share_ * kept + (busy ? 1 - kept : 0);
}

double ComputeClock::seconds(const CostTable& table, double work) const {
  if (table.clock.empty()) return 1;
  const double share = 1 - (1 - share_) * std::exp(-work / 2 / kMemory);
  ClockPoint below{.share = 0, .seconds = table.clock.front().seconds};
  for (const ClockPoint& point : table.clock) {
    if (share <= point.share) return below.seconds + (point.seconds - below.seconds) * (share - below.share) / (point.share - below.share);
    below = point;
  }
  return below.seconds;
}

}  // namespace oom::program
