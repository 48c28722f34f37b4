/// Mean loss of the model on given samples. Changes no parameter, no moment and no counter.
#pragma once

#include <functional>
#include <optional>

#include "runtime/engine.h"
#include "runtime/run_data.h"
#include "runtime/session.h"

namespace oom::runtime {

struct Evaluation {
  double loss = 0;     ///< mean cross entropy over the targets that count
  int64_t tokens = 0;  ///< how many those are
};

/// Evaluates every sample once, a global batch at a time; updates that are pending are made first. `stop` (may be empty) is asked between batches:
/// true ends it without a result.
std::optional<Evaluation> evaluate(Engine& engine, const Plan& plan, const EvaluatedSamples& samples, const std::function<bool()>& stop = {});

/// The command: plans, loads the weights and evaluates what RunData::evaluated names.
Evaluation evaluate(Session& session);

}  // namespace oom::runtime
