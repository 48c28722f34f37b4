/// The token files of a run: what is trained on, and what is held out and evaluated.
#pragma once

#include <memory>

#include "config/config.h"
#include "data/sample_stream.h"
#include "runtime/admission.h"

namespace oom::runtime {

/// Samples that an evaluation reads, each once: [first, first + count) of a stream.
struct EvaluatedSamples {
  const data::SampleStream* samples = nullptr;
  int64_t first = 0;
  int64_t count = 0;
};

class RunData {
 public:
  /// Opens the files that `purpose` reads and checks every token of all but the largest. Throws ConfigError for a missing path or a vocabulary too
  /// small for text, FileError for what is wrong with files.
  RunData(const config::Config& config, int64_t vocabulary, Purpose purpose);

  /// What a step trains on. Not for Purpose::kEvaluate.
  const data::SampleStream& training() const;
  /// The held-out samples, at most eval.samples of them; without any, the training data's. For Purpose::kEvaluate, and for training that evaluates.
  EvaluatedSamples evaluated() const;

 private:
  std::unique_ptr<const data::SampleStream> training_, held_out_;
  std::optional<int64_t> limit_;
};

}  // namespace oom::runtime
