#include "oom/parameter_unit.h"

#include <algorithm>

namespace oom {
inline namespace abi_1 {
namespace {

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

ParameterUnit make_shared_unit(const ModelDescription& model, std::string name, UnitKind kind, int layer, const std::vector<int>& parameters, int ranks) {
  ParameterUnit unit;
  unit.name = std::move(name);
  unit.kind = kind;
  unit.layer = layer;
  for (const int parameter : parameters) {
    const ParameterSpec& spec = model.parameters.at(parameter);
    unit.pieces.push_back({parameter, 0, spec.elements(), unit.elements, spec.shape});
    unit.elements = round_up(unit.elements + spec.elements(), kPieceAlignment);
  }
  const int64_t share = round_up((unit.elements + ranks - 1) / ranks, kShardAlignment);
  unit.elements = share * ranks;
  for (int rank = 0; rank < ranks; ++rank) unit.shards.push_back({rank, share * rank, share * (rank + 1)});
  return unit;
}

}  // namespace abi_1
}  // namespace oom
