/// The token files of a run: what is trained on, and what is held out and evaluated.
#pragma once

#include <memory>

#include "config/config.h"
#include "data/sample_stream.h"

namespace oom::runtime {

/// Samples that an evaluation reads, each once: [first, first + count) of a stream.
struct EvaluatedSamples {
  const data::SampleStream* samples = nullptr;
  int64_t first = 0;
  int64_t count = 0;
};

class RunData {
 public:
  /// Opens the files and checks every token of all but the largest. `trains`: data.path is wanted even where evaluation has files of its own.
  /// Throws ConfigError for a missing path or a vocabulary too small for text, FileError for what is wrong with files.
  RunData(const config::Config& config, int64_t vocabulary, bool trains);

  /// What a step trains on.
  const data::SampleStream& training() const;
  /// The held-out samples, at most eval.samples of them; without any, the training data's.
  EvaluatedSamples evaluated() const;

 private:
  std::unique_ptr<const data::SampleStream> training_, held_out_;
  std::optional<int64_t> limit_;
};

}  // namespace oom::runtime
