/// Turns what operators say of their cost into what stages draw.
#pragma once

#include "oom/plan.h"
#include "oom/stage.h"
#include "oom/sublayer.h"

namespace oom::runtime {

Cost stage_cost(const SublayerCost& cost, const Plan& plan);
Cost mixer_price(const Mixer& mixer, Pass pass, const Plan& plan);
Cost feed_forward_price(const FeedForward& feed_forward, Pass pass, const Plan& plan);
/// A pass over rows: `tensors` activations of [tokens, width] are read or written.
Cost row_price(int tensors, const Plan& plan, int64_t width);

}  // namespace oom::runtime
