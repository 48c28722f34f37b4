/// What a machine gives: rates of its shared resources, and what kinds of stages cost there when that has been measured.
///
/// A stage alone takes fixed + max(compute, amount / rate of each resource that it draws from). Stages active at once share:
///   h2d, d2h of a rank          one direction of its PCIe link
///   pcie of a rank              both directions together
///   host_io of a node           all copies between its memory and devices together
///   host_dram of a node         those copies and the pools' traffic
///   update of a node            arithmetic of the CPU AdamW
///   convert of a node           arithmetic of the pool that makes working weights from masters
///   peer of a rank              what it sends to other GPUs
/// by weighted max-min fairness: a pool draws `pool_weight` times what one copy draws when host DRAM is short.
#pragma once

#include <array>
#include <map>
#include <string>
#include <vector>

#include "oom/stage.h"

namespace oom {
inline namespace abi_1 {

/// A fit for one kind of stage: seconds = per_arithmetic arithmetic + per_traffic traffic + fixed + per_token tokens + per_token_context tokens
/// sequence_length + per_byte bytes + per_parameter parameters, with the features in Cost; arithmetic and traffic are seconds of its FLOPs and of its
/// HBM bytes at the table's rates. Takes the place of what the table itself says of that kind; what the kind draws from shared resources stays.
struct KindCost {
  double per_arithmetic = 0;  // 1: as fast as the rates say
  double per_traffic = 0;
  double fixed = 0;
  double per_token = 0;
  double per_token_context = 0;
  double per_byte = 0;
  double per_parameter = 0;
};

/// At its power limit a GPU lowers its clock: compute stages are faster where it also stands still. `seconds`: what they take when the compute lane was
/// busy for `share` of the last moments (ComputeClock, program/compute_clock.h), as a share of what they take when it always is.
struct ClockPoint {
  double share = 1;
  double seconds = 1;
};

/// Rates in units a second. The defaults are those of two H200 beside one NUMA node, as measured.
struct CostTable {
  double gemm_flops = 650e12;
  double attention_flops = 420e12;
  double other_flops = 30e12;
  double hbm_bytes = 3.4e12;  // read + written
  double h2d_bytes = 55e9;
  double d2h_bytes = 55e9;
  double pcie_bytes = 100e9;
  double host_io_bytes = 138e9;
  double host_dram_bytes = 176e9;
  double pool_weight = 2.3;
  double update_parameters = 5.05e9;
  double convert_parameters = 10e9;  // estimated: seven cores at what one core converts out of DRAM
  double peer_bytes = 270e9;
  std::vector<ClockPoint> clock;  // by rising share, linear in between; empty: the share makes no difference
  std::map<std::string, KindCost> kinds;  // by name of kind, for a GPU that always computes
  double analytic_factor = 1;  // what work of compute lanes takes of kinds that are not among these, to what the rates above say of it
};

/// Seconds of the stage's FLOPs, and of its HBM bytes, at the table's rates.
OOM_API double arithmetic_seconds(const Cost& cost, const CostTable& table);
OOM_API double traffic_seconds(const Cost& cost, const CostTable& table);

/// What one stage needs: seconds that nothing shares, seconds of its GPU's multiprocessors, and amounts of the shared resources.
struct Demand {
  double fixed_seconds = 0;
  double compute_seconds = 0;
};
OOM_API Demand demand_of(const Program& program, const Stage& stage, const CostTable& table);
/// Returns the seconds of a stage that runs alone.
OOM_API double solo_seconds(const Program& program, const Stage& stage, const CostTable& table);

}  // namespace abi_1
}  // namespace oom
