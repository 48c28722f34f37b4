/// A rank's share of a layer's experts as a unit of its own.
#pragma once

#include <oom/parameter_unit.h>

namespace oom::ep {

/// Experts [owner E/P, (owner + 1) E/P) of `layer`, P = ranks: their gate_up [E/P, 2I, H] and down [E/P, H, I] rows, delivered to and updated by `owner` alone.
ParameterUnit make_owned_unit(const ModelDescription& model, int layer, int owner, int ranks);

}  // namespace oom::ep
