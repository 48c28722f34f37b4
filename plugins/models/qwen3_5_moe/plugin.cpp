#include <oom/plugin.h>

#include "qwen3_5_moe.h"

OOM_PLUGIN(oom::qwen3_5_moe::Qwen35Moe, oom::Kind::kModelAdapter, "qwen3_5_moe", "0.1.0",
           "Qwen3.5-MoE: Gated DeltaNet and gated attention, routed experts and a shared one")
