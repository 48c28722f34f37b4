#include "oom/cost_table.h"

#include <algorithm>

#include "program/resources.h"

namespace oom {
inline namespace abi_1 {

double arithmetic_seconds(const Cost& cost, const CostTable& table) {
  return cost.gemm_flops / table.gemm_flops + cost.attention_flops / table.attention_flops + cost.other_flops / table.other_flops;
}

double traffic_seconds(const Cost& cost, const CostTable& table) { return cost.hbm_bytes / table.hbm_bytes; }

Demand demand_of(const Program& program, const Stage& stage, const CostTable& table) {
  const Cost& cost = stage.cost;
  if (const auto fit = table.kinds.find(program.kinds[stage.kind]); fit != table.kinds.end()) {
    const KindCost& kind = fit->second;
    return {cost.repeats * kind.fixed, cost.repeats * (kind.per_arithmetic * arithmetic_seconds(cost, table) + kind.per_traffic * traffic_seconds(cost, table) + kind.per_token * cost.tokens +
                            kind.per_token_context * cost.tokens * cost.sequence_length + kind.per_byte * cost.bytes + kind.per_parameter * cost.parameters)};
  }
  const double times = cost.repeats * (stage.lane.lane == Lane::kCompute ? table.analytic_factor : 1);
  return {times * cost.fixed_seconds, times * std::max(arithmetic_seconds(cost, table), traffic_seconds(cost, table))};
}

double solo_seconds(const Program& program, const Stage& stage, const CostTable& table) {
  const Demand demand = demand_of(program, stage, table);
  const program::Resources resources(program, table);
  double flowing = demand.compute_seconds;
  for (const program::Draw& draw : resources.draws_of(stage)) flowing = std::max(flowing, draw.amount / resources.capacities()[draw.resource]);
  return demand.fixed_seconds + flowing;
}

}  // namespace abi_1
}  // namespace oom
