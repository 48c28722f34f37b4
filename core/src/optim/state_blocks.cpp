#include "optim/state_blocks.h"

#include <algorithm>

#include "oom/error.h"

namespace oom::optim {
namespace {

/// Calls visit(address, position in the range, length) for each contiguous piece of elements [begin, end).
template <typename Visit>
void for_each_piece(const StateBlocks& blocks, StatePart part, int64_t begin, int64_t end, Visit visit) {
  OOM_CHECK(begin >= 0 && begin <= end && end <= blocks.count(), "elements ", begin, " to ", end, " of a shard of ", blocks.count());
  for (int64_t index = begin; index < end;) {
    const int64_t length = std::min(end - index, kBlockParameters - index % kBlockParameters);
    visit(blocks.at(part, index), index - begin, length);
    index += length;
  }
}

int64_t end_of(int64_t begin, size_t size) { return begin + static_cast<int64_t>(size); }

}  // namespace

void StateBlocks::copy_out(StatePart part, int64_t begin, std::span<float> out) const {
  for_each_piece(*this, part, begin, end_of(begin, out.size()),
                 [&](const float* piece, int64_t position, int64_t length) { std::copy_n(piece, length, out.data() + position); });
}

void StateBlocks::copy_in(StatePart part, int64_t begin, std::span<const float> in) const {
  for_each_piece(*this, part, begin, end_of(begin, in.size()),
                 [&](float* piece, int64_t position, int64_t length) { std::copy_n(in.data() + position, length, piece); });
}

void StateBlocks::fill(StatePart part, int64_t begin, int64_t end, float value) const {
  for_each_piece(*this, part, begin, end, [&](float* piece, int64_t, int64_t length) { std::fill_n(piece, length, value); });
}

void StateBlocks::clear_padding() const {
  const int64_t used = count_ % kBlockParameters;
  if (used == 0) return;
  for (StatePart part : {StatePart::kFirstMoment, StatePart::kSecondMoment, StatePart::kMaster})
    std::fill_n(at(part, count_ - 1) + 1, kBlockParameters - used, 0.0f);
}

}  // namespace oom::optim
