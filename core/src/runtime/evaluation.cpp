#include "runtime/evaluation.h"

#include <algorithm>

#include "runtime/prepared_run.h"

namespace oom::runtime {
namespace {

// Shapes are fixed by the plan: a batch that is short of samples is filled with the last one, whose targets do not count there.
data::Batch batch_of(const EvaluatedSamples& samples, int64_t first, int64_t count) {
  std::vector<int64_t> numbers(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) numbers[static_cast<size_t>(i)] = samples.first + std::min(first + i, samples.count - 1);
  data::Batch batch;
  samples.samples->read(numbers, batch);
  for (int64_t i = std::max<int64_t>(0, samples.count - first); i < count; ++i) {
    int32_t* targets = batch.targets.data() + i * batch.sequence_length;
    for (int64_t t = 0; t < batch.sequence_length; ++t) {
      if (targets[t] != data::kIgnoredTarget) --batch.valid_targets;
      targets[t] = data::kIgnoredTarget;
    }
  }
  return batch;
}

}  // namespace

std::optional<Evaluation> evaluate(Engine& engine, const Plan& plan, const EvaluatedSamples& samples, const std::function<bool()>& stop) {
  const int64_t per_rank = plan.sequences_per_rank();
  Evaluation evaluation;
  double sum = 0;
  for (int64_t first = 0; first < samples.count; first += plan.workload.global_batch) {
    if (stop && stop()) return std::nullopt;
    std::vector<data::Batch> batches;
    for (int rank = 0; rank < plan.ranks; ++rank) batches.push_back(batch_of(samples, first + rank * per_rank, per_rank));
    const StepResult result = engine.evaluate(batches);
    sum += result.loss_sum;
    evaluation.tokens += result.valid_tokens;
  }
  evaluation.loss = evaluation.tokens > 0 ? sum / static_cast<double>(evaluation.tokens) : 0;
  return evaluation;
}

Evaluation evaluate(Session& session) {
  PreparedRun run(session, make_plan(session, Purpose::kEvaluate), Purpose::kEvaluate);
  run.initialise();
  return *evaluate(run.engine(), run.planned().plan, run.data().evaluated());
}

}  // namespace oom::runtime
