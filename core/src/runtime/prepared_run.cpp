#include "runtime/prepared_run.h"

#include <cstdlib>

#include "checkpoint/hf_directory.h"
#include "oom/log.h"
#include "oom/ops/attention.h"
#include "oom/ops/linear.h"
#include "runtime/model_files.h"
#include "runtime/resume_check.h"
#include "runtime/run_checkpoint.h"
#include "runtime/schedule.h"

namespace oom::runtime {

PreparedRun::PreparedRun(Session& session, PlannedRun planned, Purpose purpose, const checkpoint::CheckpointReader* resumed)
    : session_(session), planned_(std::move(planned)), data_(session.config(), session.model().description.vocabulary, purpose) {
  const config::Config& config = session.config();
  if (resumed) check_continues(*resumed, config, session.model().description, data_.training());
  ops::configure_math();
  if (ops::deterministic_attention()) log_info("attention: deterministic (engine.deterministic): the backward repeats bit for bit and is slower");
  const config::Train train = config.train();
  run_.clip_norm = train.clip_norm;
  run_.decay_norms = train.decay_norms;
  run_.counts_experts = expert_load_steps(config);
  run_.hyper = [train](int64_t step) {
    return optim::AdamWStep{.learning_rate = learning_rate(train, step), .beta1 = train.beta1, .beta2 = train.beta2, .eps = train.eps, .weight_decay = train.weight_decay, .step = step};
  };
  transfer_ = comm::DeviceTransfer::make(planned_.plan.device);
  EngineOptions options{.watchdog_seconds = config.engine().watchdog_seconds, .gpu_budget_bytes = planned_.gpu_budget_bytes, .headroom_bytes = config.budget().headroom_bytes};
  for (const PlaceAccount& gpu : planned_.account.gpus) options.gpu_planned_bytes.push_back(gpu.peak_bytes);
  if (const char* fault = std::getenv("OOM_FAULT")) options.fault = fault;
  engine_ = std::make_unique<Engine>(ProgramSources{session.model().description, session.model().operators, planned_.plan, session.experts(planned_.plan.experts),
                                                    session.activations(planned_.plan.activations), *transfer_, {}, run_},
                                     options);
}

void PreparedRun::initialise() {
  engine_->clear_state();
  const config::Model& model = session_.config().model();
  if (model.weights == config::WeightSource::kRandom) {
    initialise_random(session_.model().description, static_cast<uint64_t>(model.seed), engine_->state(), engine_->pools());
  } else {
    const checkpoint::HfDirectory files(model.path);
    load_model_weights(files, session_.model().description, engine_->state());
    came_in_ = checkpoint::SourceTensors(files);
  }
  engine_->publish_weights();
}

void PreparedRun::restore(const checkpoint::CheckpointReader& from) {
  restore_checkpoint(from, session_.model().description, *engine_);
  if (from.has_text(checkpoint::kSourceTensorsName)) came_in_ = checkpoint::SourceTensors::parse(from.text(checkpoint::kSourceTensorsName), from.folder() / checkpoint::kSourceTensorsName);
}

std::vector<data::Batch> PreparedRun::batches(int64_t step) const {
  std::vector<data::Batch> batches;
  for (int rank = 0; rank < planned_.plan.ranks; ++rank) batches.push_back(data_.training().batch(step - 1, planned_.plan.workload.global_batch, rank, planned_.plan.ranks));
  return batches;
}

}  // namespace oom::runtime
