#include "program/kind_observations.h"

#include <algorithm>
#include <set>

#include "program/compute_clock.h"
#include "program/lane_order.h"
#include "program/resources.h"

namespace oom::program {
namespace {

constexpr double kMost = 0.9;  // of the measured time

double typical_seconds(std::span<const std::vector<StageTime>> steps, size_t stage) {
  std::vector<double> seconds;
  for (const std::vector<StageTime>& step : steps) seconds.push_back(step[stage].seconds());
  std::nth_element(seconds.begin(), seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2), seconds.end());
  return seconds[seconds.size() / 2];
}

// Copies to peers are slower beside products than the rate of their link alone: they are observed.
std::vector<bool> sharing_kinds(const Program& program, const CostTable& rates) {
  const Resources resources(program, rates);
  std::vector<bool> shares(program.kinds.size(), false);
  for (const Stage& stage : program.stages) {
    for (const Draw& draw : resources.draws_of(stage)) shares[static_cast<size_t>(stage.kind)] = shares[static_cast<size_t>(stage.kind)] || resources.is_shared(draw.resource);
  }
  return shares;
}

double analytic_seconds(const Program& program, const Stage& stage, const CostTable& rates) {
  const Demand demand = demand_of(program, stage, rates);
  return demand.fixed_seconds + demand.compute_seconds;
}

// By stage, what the clock made of its seconds: when each rank computed in `times` says how busy it had been.
std::vector<double> clock_shares(const Program& program, const std::vector<StageTime>& times, const CostTable& rates) {
  std::vector<double> shares(program.stages.size(), 1);
  if (rates.clock.empty()) return shares;
  const LaneOrder lanes(program);
  for (int rank = 0; rank < program.ranks; ++rank) {
    const std::vector<StageId>& stages = lanes.stages[lane_index(program, {Lane::kCompute, rank})];
    ComputeClock clock;
    for (int step = 0; step < 2; ++step) {  // once for what a step finds
      for (size_t i = 0; i < stages.size(); ++i) {
        const StageTime& time = times[stages[i]];
        if (i > 0) clock.advance(std::max(0.0, time.start - times[stages[i - 1]].end), false);
        shares[stages[i]] = clock.seconds(rates, time.seconds());
        clock.advance(time.seconds(), true);
      }
    }
  }
  return shares;
}

}  // namespace

void KindObservations::add(const Program& program, std::span<const std::vector<StageTime>> steps, const CostTable& rates) {
  OOM_CHECK(!steps.empty() && rates.kinds.empty(), "observations need steps, and rates alone to compare with");
  const std::vector<bool> shares = sharing_kinds(program, rates);
  const std::vector<double> clock = clock_shares(program, steps.back(), rates);
  for (size_t id = 0; id < program.stages.size(); ++id) {
    const Stage& stage = program.stages[id];
    if (shares[static_cast<size_t>(stage.kind)] || stage.collective != kNone || is_pool_lane(stage.lane.lane)) continue;
    const double seconds = typical_seconds(steps, id) / clock[id];
    Kind& kind = kinds_[program.kinds[static_cast<size_t>(stage.kind)]];
    kind.stages.push_back({.arithmetic = arithmetic_seconds(stage.cost, rates), .traffic = traffic_seconds(stage.cost, rates), .tokens = stage.cost.tokens,
                           .sequence_length = stage.cost.sequence_length, .bytes = stage.cost.bytes, .parameters = stage.cost.parameters, .seconds = seconds});
    if (stage.lane.lane != Lane::kCompute) continue;
    kind.analytic += analytic_seconds(program, stage, rates);
    kind.measured += seconds;
  }
}

std::map<std::string, KindCost> KindObservations::fits() const {
  std::map<std::string, KindCost> fits;
  for (const auto& [name, kind] : kinds_) fits[name] = fit_kind_cost(kind.stages);
  return fits;
}

double KindObservations::analytic_factor() const {
  std::vector<const Kind*> computing;
  double left = 0;
  for (const auto& [name, kind] : kinds_) {
    if (!(kind.analytic > 0 && kind.measured > 0)) continue;
    computing.push_back(&kind);
    left += kMost * kind.measured;
  }
  const auto ratio = [](const Kind* kind) { return kind->measured / kind->analytic; };
  std::ranges::sort(computing, {}, ratio);
  for (const Kind* kind : computing) {
    left -= kind->measured;
    if (left <= 0) return ratio(kind);
  }
  return 1;
}

std::vector<std::string> analytic_kinds(const Program& program, const CostTable& costs) {
  const std::vector<bool> shares = sharing_kinds(program, costs);
  std::set<std::string> kinds;
  for (const Stage& stage : program.stages) {
    const std::string& kind = program.kinds[static_cast<size_t>(stage.kind)];
    if (!shares[static_cast<size_t>(stage.kind)] && !costs.kinds.contains(kind) && analytic_seconds(program, stage, costs) > 0) kinds.insert(kind);
  }
  return {kinds.begin(), kinds.end()};
}

}  // namespace oom::program
