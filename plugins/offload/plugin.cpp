#include <oom/plugin.h>

#include "offload.h"

OOM_PLUGIN(oom::offload::Offload, oom::Kind::kActivationStrategy, "offload", "0.1.0", "Stores layer boundaries in pinned host memory and replays layers in the backward")
