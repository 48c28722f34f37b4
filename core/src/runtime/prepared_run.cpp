#include "runtime/prepared_run.h"

#include "checkpoint/hf_directory.h"
#include "checkpoint/tensor_files.h"
#include "oom/ops/linear.h"
#include "runtime/model_files.h"
#include "runtime/schedule.h"

namespace oom::runtime {
namespace {

constexpr int64_t kByteTokens = 256;
constexpr int64_t kCheckedTokens = int64_t{1} << 30;  // about a second
constexpr int64_t kPieceTokens = 1 << 20;
constexpr int kCheckingThreads = 4;

data::SampleOptions sample_options(const config::Data& data) {
  data::SampleOptions options{.sequence_length = data.sequence_length,
                              .documents = data.documents == config::Documents::kIsolated ? data::Documents::kIsolated : data::Documents::kJoined,
                              .shuffle_seed = {}};
  if (data.shuffle_seed) options.shuffle_seed = static_cast<uint64_t>(*data.shuffle_seed);
  return options;
}

// Reads every token once, so that one outside the vocabulary ends the run at its beginning. Of larger corpora tokens are checked as they are read.
void check_tokens(const data::TokenSource& source) {
  const int64_t total = source.token_count();
  if (total > kCheckedTokens) return;
  const int64_t pieces = (total + kPieceTokens - 1) / kPieceTokens;
  checkpoint::for_each_parallel(static_cast<size_t>(pieces), kCheckingThreads, [&](size_t piece) {
    const int64_t begin = static_cast<int64_t>(piece) * kPieceTokens;
    std::vector<int32_t> tokens(static_cast<size_t>(std::min(kPieceTokens, total - begin)));
    source.read(begin, tokens);
  });
}

}  // namespace

PreparedRun::PreparedRun(Session& session, PlannedRun planned) : session_(session), planned_(std::move(planned)) {
  const config::Config& config = session.config();
  if (!config.data().path) throw ConfigError(cat(config.where("data", "path"), ": missing; name the corpus to read"));
  const int64_t vocabulary = session.model().description.vocabulary;
  if (config.data().format == config::DataFormat::kText && vocabulary < kByteTokens) {
    throw ConfigError(cat(config.where("data", "format"), ": text is read as byte tokens, which need a model with a vocabulary of at least ", kByteTokens, "; this one's is ", vocabulary,
                          ". Make token files with the model's tokenizer and use format = \"megatron\""));
  }
  samples_ = std::make_unique<data::SampleStream>(data::open_token_source(std::string(config::word(config.data().format)), *config.data().path, vocabulary), sample_options(config.data()));
  if (config.data().format == config::DataFormat::kMegatron) check_tokens(samples_->source());
  log_info("data: ", samples_->source().description(), "; ", samples_->sample_count(), " samples of ", config.data().sequence_length, " tokens");

  ops::configure_math();
  const config::Train train = config.train();
  run_.clip_norm = train.clip_norm;
  run_.decay_norms = train.decay_norms;
  run_.hyper = [train](int64_t step) {
    return optim::AdamWStep{.learning_rate = learning_rate(train, step), .beta1 = train.beta1, .beta2 = train.beta2, .eps = train.eps, .weight_decay = train.weight_decay, .step = step};
  };
  transfer_ = comm::DeviceTransfer::make(planned_.plan.device);
  EngineOptions options{.watchdog_seconds = config.engine().watchdog_seconds, .gpu_budget_bytes = planned_.gpu_budget_bytes, .headroom_bytes = config.budget().headroom_bytes};
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
    load_model_weights(checkpoint::HfDirectory(model.path), session_.model().description, engine_->state());
  }
  engine_->publish_weights();
}

std::vector<data::Batch> PreparedRun::batches(int64_t step) const {
  std::vector<data::Batch> batches;
  for (int rank = 0; rank < planned_.plan.ranks; ++rank) batches.push_back(samples_->batch(step - 1, planned_.plan.workload.global_batch, rank, planned_.plan.ranks));
  return batches;
}

}  // namespace oom::runtime
