/// How parameters are laid out for streaming. A unit is what is delivered at once: the experts of a layer (a bank), a layer's other
/// parameters, the embedding, the head. A unit is one flat array; each of its shards has one owner rank, which holds master and
/// moments and updates them; tensors lie in the array one after another.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "oom/model.h"
#include "oom/plan.h"

namespace oom {
inline namespace abi_1 {

using UnitId = int32_t;

enum class UnitKind { kBank, kOrdinary, kVocabulary };

/// Elements [first, first + elements) of a parameter lie at `offset` of the unit.
struct UnitPiece {
  int parameter = -1;      ///< index into ModelDescription::parameters
  int64_t first = 0;
  int64_t elements = 0;
  int64_t offset = 0;      ///< multiple of kPieceAlignment
  std::vector<int64_t> shape;  ///< of this piece: [E / P, 2I, H] for a rank's experts
};

/// Elements [begin, end) of a unit, owned and updated by `owner`.
struct ShardRange {
  int owner = 0;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t elements() const { return end - begin; }
};

struct ParameterUnit {
  std::string name;        ///< "layer 3 bank"
  UnitKind kind = UnitKind::kOrdinary;
  int layer = -1;          ///< decoder layer, kEmbeddingLayer or kHeadLayer
  std::vector<UnitPiece> pieces;
  int64_t elements = 0;    ///< padded to whole state blocks for every shard
  std::vector<ShardRange> shards;
  std::vector<int> readers;  ///< ranks that compute with it; empty: all
  bool sums_slices = false;  ///< gradients come in several parts, which are summed in FP32 on the GPU
};

/// Tensors begin at multiples of this many elements: 256 bytes in BF16, which every GEMM accepts.
inline constexpr int64_t kPieceAlignment = 128;
/// Shards begin at multiples of a state block (optim/state_blocks.h).
inline constexpr int64_t kShardAlignment = 4096;

/// Lays `parameters` (indices) out as one unit shared evenly by `ranks` owners.
OOM_API ParameterUnit make_shared_unit(const ModelDescription& model, std::string name, UnitKind kind, int layer, const std::vector<int>& parameters, int ranks);

}  // namespace abi_1
}  // namespace oom
