#include "runtime/evaluation.h"

#include <algorithm>
#include <chrono>

#include "oom/log.h"
#include "runtime/prepared_run.h"

namespace oom::runtime {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kProgressInterval{10};

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

std::optional<Evaluation> evaluate(Engine& engine, const Plan& plan, const EvaluatedSamples& samples, const EvaluationHooks& hooks) {
  const int64_t per_rank = plan.sequences_per_rank();
  Evaluation evaluation;
  double sum = 0;
  Clock::time_point told = Clock::now();
  for (int64_t first = 0; first < samples.count; first += plan.workload.global_batch) {
    if (hooks.stop && hooks.stop()) return std::nullopt;
    if (hooks.progress && Clock::now() - told >= kProgressInterval) {
      told = Clock::now();
      hooks.progress(first, evaluation);
    }
    std::vector<data::Batch> batches;
    for (int rank = 0; rank < plan.ranks; ++rank) batches.push_back(batch_of(samples, first + rank * per_rank, per_rank));
    const StepResult result = engine.evaluate(batches);
    sum += result.loss_sum;
    evaluation.tokens += result.valid_tokens;
    if (evaluation.tokens > 0) evaluation.loss = sum / static_cast<double>(evaluation.tokens);
  }
  return evaluation;
}

Evaluation evaluate(Session& session) {
  PreparedRun run(session, make_plan(session, Purpose::kEvaluate), Purpose::kEvaluate);
  run.initialise();
  const EvaluatedSamples samples = run.data().evaluated();
  const auto tell = [&](int64_t done, const Evaluation& so_far) { log_info("eval: ", done, " of ", samples.count, " samples, loss ", so_far.loss, " so far"); };
  return *evaluate(run.engine(), run.planned().plan, samples, {.stop = {}, .progress = tell});
}

}  // namespace oom::runtime
