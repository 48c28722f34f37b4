/// Divides shared rates among the stages active at one moment: weighted max-min fairness by progressive filling.
#pragma once

#include <cstdint>
#include <vector>

namespace oom::program {

/// An active stage's draw from a shared resource, for the whole of its work.
struct Draw {
  int resource;
  double amount;
};

/// A share of work that flows at some speed: 1 / seconds for the whole.
struct Flow {
  const Draw* draws = nullptr;
  int draw_count = 0;
  double step = 0;       // speed gained per unit of fairness level: weight / size
  double limit = 0;      // highest speed, when it runs alone
  double speed = 0;      // result
};

class FairShares {
 public:
  explicit FairShares(std::vector<double> capacities);
  /// Sets `speed` of all flows.
  void fill(std::vector<Flow*>& flows);

 private:
  std::vector<double> capacities_;
  std::vector<double> left_;      // [resource]
  std::vector<double> demand_;    // [resource] gained per unit of level by flows that still grow
  std::vector<int> touched_;
  std::vector<Flow*> growing_;
};

}  // namespace oom::program
