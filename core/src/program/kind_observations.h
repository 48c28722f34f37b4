/// What kinds of stages were seen to take in programs that ran, and the costs that follow.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "oom/cost_table.h"
#include "oom/simulator.h"
#include "program/cost_fit.h"

namespace oom::program {

/// Kinds that draw on shared resources are not observed: those are what rates are for. Nor are pools' work and collectives, whose members wait for each other.
class KindObservations {
 public:
  /// `steps` holds the times of the program's stages, by StageId, of each step that was recorded; a stage's middle one counts, as it would have been on a
  /// GPU that always computes (CostTable::clock). `rates` are the machine's, without kinds.
  void add(const Program& program, std::span<const std::vector<StageTime>> steps, const CostTable& rates);
  bool empty() const { return kinds_.empty(); }
  /// A fit for each kind seen.
  std::map<std::string, KindCost> fits() const;
  /// CostTable::analytic_factor: the ratio of measured to analytic seconds that kinds of nine tenths of the compute lanes' measured time stay within. So a kind that was not seen is
  /// as dear as the dearer ones that matter; small kinds, which take many times what their few operations say, decide nothing. 1 where nothing was seen.
  double analytic_factor() const;

 private:
  struct Kind {
    std::vector<CostObservation> stages;
    double analytic = 0, measured = 0;  // seconds of its stages on compute lanes
  };
  std::map<std::string, Kind> kinds_;
};

/// Kinds of a program's stages that take time of their own and of which `costs` has no fit, in alphabetical order.
std::vector<std::string> analytic_kinds(const Program& program, const CostTable& costs);

}  // namespace oom::program
