/// Training samples cut from a token stream, and which of them a rank reads at a step.
///
/// Of N tokens there are floor((N - 1) / S) samples, of which the last may be held out; sample i reads tokens [i S, i S + S]: the first S are inputs, the last S targets.
/// Positions in the order of samples count on through all epochs: position p is element p mod n of epoch p / n, n being the number of
/// samples. An epoch is in order, or shuffled from seed and epoch (permutation.h). Step t (from 0) of global batch G takes positions
/// [t G, (t + 1) G), and rank r of R the r-th of R equal parts of them. All of it is a pure function of these numbers: the position that
/// a checkpoint keeps is the step.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "data/target_mask.h"
#include "data/token_source.h"

namespace oom::data {

/// A target that does not count in the loss.
inline constexpr int32_t kIgnoredTarget = -100;

enum class Documents {
  kJoined,    ///< one stream; positions 0..S-1
  kIsolated,  ///< nothing crosses a document: positions restart at each, and a target that lies in another document is ignored
};

struct SampleOptions {
  int64_t sequence_length = 0;  ///< S, tokens
  Documents documents = Documents::kJoined;
  std::optional<uint64_t> shuffle_seed;  ///< none: in order
  int64_t held_out = 0;                  ///< last samples that are in no epoch
};

/// Samples side by side. Matrices are row-major [sample_count, sequence_length].
struct Batch {
  int64_t sample_count = 0;
  int64_t sequence_length = 0;
  std::vector<int32_t> inputs;
  std::vector<int32_t> targets;    ///< kIgnoredTarget where there is none
  std::vector<int32_t> positions;  ///< for rotary embedding; restart at each sample, and when isolated at each document
  /// For each sample the offsets at which its documents begin, and S at the end: {0, S} when joined. (A document that began in an
  /// earlier sample begins again at 0.)
  std::vector<std::vector<int32_t>> document_begins;
  int64_t valid_targets = 0;  ///< targets that are not ignored

  /// Returns the document limits of samples [first, first + count) laid end to end: 0, ..., count * S ("cu_seqlens").
  std::vector<int32_t> cumulative_lengths(int64_t first, int64_t count) const;
};

/// Immutable; every method is const and safe from several threads.
class SampleStream {
 public:
  /// Throws FileError when the source has fewer than S + 1 tokens, or none are left besides those held out. `mask` (null: none) says which tokens
  /// count as targets.
  SampleStream(std::unique_ptr<const TokenSource> source, const SampleOptions& options, std::unique_ptr<const TargetMask> mask = nullptr);

  const TokenSource& source() const { return *source_; }
  const TargetMask* mask() const { return mask_.get(); }
  /// Samples of one epoch.
  int64_t sample_count() const { return sample_count_; }
  /// Samples sample_count() to sample_count() + held_out() - 1 are held out.
  int64_t held_out() const { return options_.held_out; }
  /// Returns the sample that is read at `position` of the order.
  int64_t sample_at(int64_t position) const;
  /// Returns the batch of one rank at one step (from 0). `ranks` divides `global_batch`.
  Batch batch(int64_t step, int64_t global_batch, int64_t rank, int64_t ranks) const;
  /// Reads given samples, in that order, into `batch`, whose memory is reused. Evaluation reads 0, 1, 2, ...
  void read(std::span<const int64_t> samples, Batch& batch) const;

 private:
  void read_sample(int64_t sample, int64_t row, Batch& batch) const;

  std::unique_ptr<const TokenSource> source_;
  std::unique_ptr<const TargetMask> mask_;
  SampleOptions options_;
  int64_t sample_count_;
};

}  // namespace oom::data
