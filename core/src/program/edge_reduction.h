/// Chooses the fewest edges that keep a set of wanted orders, given that lanes execute in order and collectives rendezvous.
#pragma once

#include <vector>

#include "oom/stage.h"

namespace oom::program {

/// Fills `after` of every stage with the necessary ones among its `wanted` orders (the second index of `wanted` is free, repeats are
/// allowed): each kept edge orders two stages that nothing else orders. Throws Error when the wanted orders of one step, lane order
/// and collectives make a circle, naming its stages.
void reduce_edges(Program& program, const std::vector<std::vector<Edge>>& wanted);

}  // namespace oom::program
