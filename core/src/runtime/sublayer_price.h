/// Turns what operators say of their cost into what stages draw.
#pragma once

#include "oom/plan.h"
#include "oom/stage.h"
#include "oom/step_emitter.h"

namespace oom::runtime {

SublayerCost mixer_cost(const Mixer& mixer, Pass pass, const MixerPart& part, const Plan& plan);
Cost mixer_price(const Mixer& mixer, Pass pass, const MixerPart& part, const Plan& plan);
Cost feed_forward_price(const FeedForward& feed_forward, Pass pass, int64_t tokens, const Plan& plan);
/// A pass over rows: `tensors` activations of [tokens, width] are read or written.
Cost row_price(int tensors, int64_t tokens, const Plan& plan, int64_t width);

}  // namespace oom::runtime
