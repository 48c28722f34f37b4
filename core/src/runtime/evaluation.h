/// Mean loss of the model on given samples. Changes no parameter, no moment and no counter.
#pragma once

#include <functional>
#include <optional>

#include "runtime/engine.h"
#include "runtime/run_data.h"
#include "runtime/session.h"

namespace oom::runtime {

struct Evaluation {
  double loss = 0;     ///< mean cross entropy over the targets that count; 0 when none does
  int64_t tokens = 0;  ///< how many those are
};

/// What an evaluation that takes a while does between batches; both may be empty.
struct EvaluationHooks {
  std::function<bool()> stop;                                                    ///< true ends it without a result
  std::function<void(int64_t samples_done, const Evaluation& so_far)> progress;  ///< called every ten seconds
};

/// Evaluates every sample once, a global batch at a time; updates that are pending are made first.
std::optional<Evaluation> evaluate(Engine& engine, const Plan& plan, const EvaluatedSamples& samples, const EvaluationHooks& hooks = {});

/// The command: plans, loads the weights and evaluates what RunData::evaluated names.
Evaluation evaluate(Session& session);

}  // namespace oom::runtime
