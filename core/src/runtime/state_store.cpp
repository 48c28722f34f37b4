#include "runtime/state_store.h"

#include <algorithm>

#include "optim/adamw.h"

namespace oom::runtime {

void StateStore::add(const ParameterUnit& unit, std::vector<Shard> shards) {
  segments_.resize(model_.parameters.size());
  const int unit_index = static_cast<int>(shards_.size());
  for (const UnitPiece& piece : unit.pieces) {
    for (size_t s = 0; s < unit.shards.size(); ++s) {
      const int64_t begin = std::max(piece.offset, unit.shards[s].begin);
      const int64_t end = std::min(piece.offset + piece.elements, unit.shards[s].end);
      if (begin >= end) continue;
      segments_[piece.parameter].push_back({piece.first + begin - piece.offset, end - begin, unit_index, static_cast<int>(s), begin - unit.shards[s].begin});
    }
    std::sort(segments_[piece.parameter].begin(), segments_[piece.parameter].end(), [](const Segment& a, const Segment& b) { return a.first < b.first; });
  }
  shards_.push_back(std::move(shards));
}

template <typename Visit>
void StateStore::visit(int parameter, int64_t first, int64_t count, const Visit& visit) const {
  int64_t covered = 0;
  for (const Segment& segment : segments_.at(parameter)) {
    const int64_t begin = std::max(first, segment.first), end = std::min(first + count, segment.first + segment.count);
    if (begin >= end) continue;
    visit(shards_[segment.unit][segment.shard], segment.offset + begin - segment.first, begin - first, end - begin);
    covered += end - begin;
  }
  OOM_CHECK_EQ(covered, count, "parameter ", model_.parameters.at(parameter).name, " is not covered by its units");
}

void StateStore::read(int parameter, optim::StatePart part, int64_t first, std::span<float> out) const {
  visit(parameter, first, static_cast<int64_t>(out.size()),
        [&](const Shard& shard, int64_t offset, int64_t at, int64_t count) {
          if (shard.rank >= 0) {
            device_->read(shard.rank, shard.state, part, offset, out.subspan(at, count));
          } else {
            shard.state.copy_out(part, offset, out.subspan(at, count));
          }
        });
}

void StateStore::write(int parameter, optim::StatePart part, int64_t first, std::span<const float> in) {
  visit(parameter, first, static_cast<int64_t>(in.size()),
        [&](const Shard& shard, int64_t offset, int64_t at, int64_t count) {
          if (shard.rank >= 0) {
            device_->write(shard.rank, shard.state, part, offset, in.subspan(at, count));
          } else {
            shard.state.copy_in(part, offset, in.subspan(at, count));
          }
        });
}

void StateStore::clear(std::span<memory::WorkerPool* const> pools) {
  for (const std::vector<Shard>& unit : shards_) {
    for (const Shard& shard : unit) {
      if (shard.rank >= 0) {
        device_->clear(shard.rank, shard.state);
        continue;
      }
      pools[shard.node]->parallel_for(optim::state_blocks(shard.state.count()), [&](int64_t begin, int64_t end, int) {
        std::fill(shard.state.data() + begin * optim::kBlockFloats, shard.state.data() + end * optim::kBlockFloats, 0.0f);
      });
    }
  }
}

void StateStore::publish(std::span<memory::WorkerPool* const> pools) {
  const optim::ElementType type = working_type_ == ElementType::kFloat32 ? optim::ElementType::kFP32 : optim::ElementType::kBF16;
  for (const std::vector<Shard>& unit : shards_) {
    for (const Shard& shard : unit) {
      if (shard.weights == nullptr) continue;
      if (shard.rank >= 0) {
        device_->publish(shard.rank, shard.state, {type, shard.weights});
      } else {
        optim::publish_weights_parallel(*pools[shard.node], shard.state, 0, shard.state.count(), {type, shard.weights});
      }
    }
  }
}

}  // namespace oom::runtime
