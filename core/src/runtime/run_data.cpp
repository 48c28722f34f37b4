#include "runtime/run_data.h"

#include <algorithm>

#include "base/text.h"
#include "checkpoint/tensor_files.h"
#include "data/token_source.h"
#include "oom/log.h"

namespace oom::runtime {
namespace {

constexpr int64_t kByteTokens = 256;
constexpr int64_t kCheckedTokens = int64_t{1} << 30;  // about a second
constexpr int64_t kPieceTokens = 1 << 20;
constexpr int kCheckingThreads = 4;

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

struct Files {
  const char* table;  // of the configuration, which names them
  std::string path;
  config::DataFormat format;
  data::SampleOptions options;
};

std::unique_ptr<const data::SampleStream> open_samples(const config::Config& config, const Files& files, int64_t vocabulary, bool tells) {
  if (files.format == config::DataFormat::kText && vocabulary < kByteTokens) {
    throw ConfigError(cat(config.where(files.table, "format"), ": text is read as byte tokens, which need a model with a vocabulary of at least ", kByteTokens, "; this one's is ", vocabulary,
                          ". Make token files with the model's tokenizer (scripts/make_tokens) and use format = \"megatron\""));
  }
  std::unique_ptr<data::TokenSource> source = data::open_token_source(std::string(config::word(files.format)), files.path, vocabulary);
  std::unique_ptr<const data::TargetMask> mask;
  if (files.format == config::DataFormat::kMegatron) {
    check_tokens(*source);
    if (config.data().mask == config::TargetMask::kAuto) mask = data::TargetMask::find(files.path, source->token_count());
  }
  auto samples = std::make_unique<const data::SampleStream>(std::move(source), files.options, std::move(mask));
  if (tells) {
    log_info(files.table, ": ", samples->source().description(), "; ", samples->sample_count(), " samples of ", files.options.sequence_length, " tokens",
             samples->held_out() > 0 ? cat(", ", samples->held_out(), " held out") : "");
  }
  if (samples->mask() && samples->source().token_count() <= kCheckedTokens) {
    const int64_t counted = samples->mask()->count();
    const std::string path = samples->mask()->path().string();
    if (counted == 0) throw FileError(cat(path, ": no token counts as a target; mask less, or ignore the file with data.mask = \"none\""));
    if (tells) log_info(files.table, ": ", base::group_digits(counted), " of the tokens count as targets (", path, ")");
  }
  return samples;
}

}  // namespace

RunData::RunData(const config::Config& config, int64_t vocabulary, Purpose purpose) : limit_(config.eval().samples) {
  const bool tells = purpose != Purpose::kMeasure;  // short runs read what the run itself will
  const config::Data& data = config.data();
  const config::Eval& eval = config.eval();
  data::SampleOptions options{.sequence_length = data.sequence_length,
                              .documents = data.documents == config::Documents::kIsolated ? data::Documents::kIsolated : data::Documents::kJoined,
                              .shuffle_seed = {}};
  const bool evaluates = purpose == Purpose::kEvaluate || (purpose == Purpose::kTrain && (eval.every > 0 || config.checkpoint().keep_best > 0));
  if (eval.path && evaluates) held_out_ = open_samples(config, {"eval", *eval.path, eval.format.value_or(data.format), options}, vocabulary, tells);
  if (held_out_ && purpose == Purpose::kEvaluate) return;
  if (!data.path) throw ConfigError(cat(config.where("data", "path"), ": missing; name the corpus to read"));
  if (data.shuffle_seed) options.shuffle_seed = static_cast<uint64_t>(*data.shuffle_seed);
  options.held_out = eval.holdout_samples;
  training_ = open_samples(config, {"data", *data.path, data.format, options}, vocabulary, tells);
}

const data::SampleStream& RunData::training() const {
  OOM_CHECK(training_ != nullptr, "opened for evaluation alone");
  return *training_;
}

EvaluatedSamples RunData::evaluated() const {
  EvaluatedSamples evaluated{.samples = held_out_ ? held_out_.get() : training_.get()};
  evaluated.first = !held_out_ && training_->held_out() > 0 ? training_->sample_count() : 0;
  evaluated.count = evaluated.first > 0 ? training_->held_out() : evaluated.samples->sample_count();
  evaluated.count = std::min(evaluated.count, limit_.value_or(evaluated.count));
  return evaluated;
}

}  // namespace oom::runtime
