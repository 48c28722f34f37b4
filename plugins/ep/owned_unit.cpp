#include "owned_unit.h"

namespace oom::ep {
namespace {

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

ParameterUnit make_owned_unit(const ModelDescription& model, int layer, int owner, int ranks) {
  ParameterUnit unit;
  unit.name = cat("layer ", layer, " experts of rank ", owner);
  unit.kind = UnitKind::kBank;
  unit.layer = layer;
  unit.readers = {owner};
  for (int p = 0; p < static_cast<int>(model.parameters.size()); ++p) {
    const ParameterSpec& spec = model.parameters[p];
    if (spec.role != ParameterRole::kExpert || spec.layer != layer) continue;
    OOM_CHECK(spec.shape.size() == 3 && spec.shape[0] == model.routed.experts, spec.name, " must be a bank [E, rows, columns]");
    UnitPiece piece{.parameter = p, .first = spec.elements() / ranks * owner, .elements = spec.elements() / ranks, .offset = unit.elements, .shape = spec.shape};
    piece.shape[0] /= ranks;
    unit.elements = round_up(unit.elements + piece.elements, kPieceAlignment);
    unit.pieces.push_back(std::move(piece));
  }
  OOM_CHECK_EQ(unit.pieces.size(), 2u, "layer ", layer, " must list gate_up and down");
  unit.elements = round_up(unit.elements, kShardAlignment);
  unit.shards = {{owner, 0, unit.elements}};
  return unit;
}

}  // namespace oom::ep
