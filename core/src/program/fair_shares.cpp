#include "program/fair_shares.h"

#include <algorithm>
#include <limits>

namespace oom::program {

FairShares::FairShares(std::vector<double> capacities)
    : capacities_(std::move(capacities)), left_(capacities_.size()), demand_(capacities_.size(), 0) {}

void FairShares::fill(std::vector<Flow*>& flows) {
  touched_.clear();
  for (Flow* flow : flows) {
    flow->speed = 0;
    for (int i = 0; i < flow->draw_count; ++i) {
      const int resource = flow->draws[i].resource;
      if (demand_[resource] == 0) {
        touched_.push_back(resource);
        left_[resource] = capacities_[resource];
      }
      demand_[resource] += flow->draws[i].amount * flow->step;
    }
  }
  // Raise the level of all growing flows together until a flow meets its own limit or a resource is full; those stop, the rest go on.
  growing_.assign(flows.begin(), flows.end());
  constexpr double kFull = 1e-9;
  while (!growing_.empty()) {
    double rise = std::numeric_limits<double>::infinity();
    for (const Flow* flow : growing_) rise = std::min(rise, (flow->limit - flow->speed) / flow->step);
    for (int resource : touched_) {
      if (demand_[resource] > 0) rise = std::min(rise, left_[resource] / demand_[resource]);
    }
    rise = std::max(rise, 0.0);
    for (int resource : touched_) left_[resource] -= demand_[resource] * rise;
    const auto stops = [&](Flow* flow) {
      flow->speed += flow->step * rise;
      bool stop = flow->speed >= flow->limit * (1 - kFull);
      for (int i = 0; i < flow->draw_count && !stop; ++i) {
        const int resource = flow->draws[i].resource;
        stop = left_[resource] <= capacities_[resource] * kFull;
      }
      return stop;
    };
    const auto end = std::remove_if(growing_.begin(), growing_.end(), stops);
    growing_.erase(end, growing_.end());
    for (int resource : touched_) demand_[resource] = 0;
    for (const Flow* flow : growing_) {
      for (int i = 0; i < flow->draw_count; ++i) demand_[flow->draws[i].resource] += flow->draws[i].amount * flow->step;
    }
  }
}

}  // namespace oom::program
