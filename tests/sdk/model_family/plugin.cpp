#include <oom/plugin.h>

#include "qwen2_moe.h"

OOM_PLUGIN(qwen2_moe::Qwen2Moe, oom::Kind::kModelAdapter, "qwen2_moe", "0.1.0", "Qwen2-MoE without biases: routed experts and a gated shared one")
