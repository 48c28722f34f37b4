#include "data/sample_stream.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "data/permutation.h"
#include "oom/error.h"

namespace oom::data {

std::vector<int32_t> Batch::cumulative_lengths(int64_t first, int64_t count) const {
  OOM_CHECK(first >= 0 && count >= 0 && first + count <= sample_count, first, " + ", count, " of ", sample_count);
  std::vector<int32_t> lengths{0};
  for (int64_t sample = first; sample < first + count; ++sample) {
    const auto& begins = document_begins[static_cast<size_t>(sample)];
    const auto offset = static_cast<int32_t>((sample - first) * sequence_length);
    for (size_t i = 1; i < begins.size(); ++i) lengths.push_back(offset + begins[i]);
  }
  return lengths;
}

SampleStream::SampleStream(std::unique_ptr<const TokenSource> source, const SampleOptions& options, std::unique_ptr<const TargetMask> mask)
    : source_(std::move(source)), mask_(std::move(mask)), options_(options) {
  const int64_t length = options_.sequence_length;
  OOM_CHECK(length > 0 && length < (int64_t{1} << 31), "sequence length ", length);
  const int64_t tokens = source_->token_count();
  sample_count_ = tokens > length ? (tokens - 1) / length : 0;
  if (sample_count_ == 0)
    throw FileError(cat(source_->description(), ": too few tokens for one sample: ", tokens, ", and data.sequence_length = ", length, " needs ",
                        length + 1, ". Use more data or a shorter sequence_length"));
  OOM_CHECK(options_.held_out >= 0, options_.held_out);
  if (options_.held_out >= sample_count_)
    throw FileError(cat(source_->description(), ": has ", sample_count_, " samples, and eval.holdout_samples = ", options_.held_out, " leaves none to train on"));
  sample_count_ -= options_.held_out;
}

int64_t SampleStream::sample_at(int64_t position) const {
  OOM_CHECK(position >= 0, position);
  const int64_t index = position % sample_count_;
  if (!options_.shuffle_seed) return index;
  return Permutation(sample_count_, *options_.shuffle_seed, position / sample_count_)(index);
}

Batch SampleStream::batch(int64_t step, int64_t global_batch, int64_t rank, int64_t ranks) const {
  OOM_CHECK(step >= 0 && global_batch > 0 && ranks > 0 && rank >= 0 && rank < ranks && global_batch % ranks == 0, "step ", step,
            ", global batch ", global_batch, ", rank ", rank, " of ", ranks);
  const int64_t count = global_batch / ranks;
  const int64_t first = step * global_batch + rank * count;
  std::vector<int64_t> samples(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) samples[static_cast<size_t>(i)] = sample_at(first + i);
  Batch batch;
  read(samples, batch);
  return batch;
}

void SampleStream::read(std::span<const int64_t> samples, Batch& batch) const {
  const auto length = static_cast<size_t>(options_.sequence_length);
  batch.sample_count = static_cast<int64_t>(samples.size());
  batch.sequence_length = options_.sequence_length;
  batch.inputs.resize(samples.size() * length);
  batch.targets.resize(samples.size() * length);
  batch.positions.resize(samples.size() * length);
  batch.document_begins.resize(samples.size());
  batch.valid_targets = 0;
  for (size_t row = 0; row < samples.size(); ++row) read_sample(samples[row], static_cast<int64_t>(row), batch);
}

void SampleStream::read_sample(int64_t sample, int64_t row, Batch& batch) const {
  OOM_CHECK(sample >= 0 && sample < sample_count_ + options_.held_out, "sample ", sample, " of ", sample_count_, " and ", options_.held_out, " held out");
  const int64_t length = options_.sequence_length;
  const auto row_of = [&](std::vector<int32_t>& matrix) {
    return std::span(matrix).subspan(static_cast<size_t>(row * length), static_cast<size_t>(length));
  };
  const auto inputs = row_of(batch.inputs);
  const auto targets = row_of(batch.targets);
  const auto positions = row_of(batch.positions);
  const int64_t begin = sample * length;

  source_->read(begin, inputs);
  std::copy(inputs.begin() + 1, inputs.end(), targets.begin());
  source_->read(begin + length, targets.last(1));

  auto& begins = batch.document_begins[static_cast<size_t>(row)];
  begins.assign(1, 0);
  int64_t ignored = 0;
  if (options_.documents == Documents::kIsolated) {
    for (const int64_t document : source_->document_begins(begin + 1, begin + length + 1)) {
      const int64_t offset = document - begin;
      targets[static_cast<size_t>(offset - 1)] = kIgnoredTarget;
      ++ignored;
      if (offset < length) begins.push_back(static_cast<int32_t>(offset));
    }
  }
  if (mask_) ignored += mask_->apply(begin + 1, targets, kIgnoredTarget);
  begins.push_back(static_cast<int32_t>(length));
  for (size_t i = 0; i + 1 < begins.size(); ++i) std::iota(positions.begin() + begins[i], positions.begin() + begins[i + 1], 0);
  batch.valid_targets += length - ignored;
}

}  // namespace oom::data
