/// Fits what a kind of stage costs to what it was seen to take.
#pragma once

#include <span>

#include "oom/cost_table.h"

namespace oom::program {

struct CostObservation {
  double arithmetic = 0;  ///< seconds at the machine's rates, as in KindCost
  double traffic = 0;
  double tokens = 0;
  double sequence_length = 0;
  double bytes = 0;
  double parameters = 0;
  double seconds = 0;
};

/// Returns a KindCost without negative terms, of as few terms as bring the root mean square of relative errors below 2 %, or else of as many as each halve
/// their squares. All subsets of its terms are tried: among as many terms the errors are least, among equally good ones what grows with the stage's work goes before what does
/// not, so that one observation alone is a rate. Needs at least one observation of more than 0 seconds; returns zeros otherwise.
KindCost fit_kind_cost(std::span<const CostObservation> observations);

/// Returns seconds of the fit.
double predicted_seconds(const KindCost& cost, const CostObservation& at);

}  // namespace oom::program
