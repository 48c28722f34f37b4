/// Fits what a kind of stage costs to what it was seen to take.
#pragma once

#include <span>

#include "oom/cost_table.h"

namespace oom::program {

struct CostObservation {
  double tokens = 0;
  double sequence_length = 0;
  double bytes = 0;
  double parameters = 0;
  double seconds = 0;
};

/// Returns the KindCost without negative terms that minimises the sum of squared relative errors: all subsets of its five terms are tried, so the
/// minimum is exact and terms that the observations cannot tell apart come out as the fewest. Needs at least one observation of more than 0
/// seconds; returns zeros otherwise.
KindCost fit_kind_cost(std::span<const CostObservation> observations);

/// Returns seconds of the fit.
double predicted_seconds(const KindCost& cost, const CostObservation& at);

}  // namespace oom::program
