#include <oom/plugin.h>

#include "qwen3_moe.h"

OOM_PLUGIN(oom::qwen3_moe::Qwen3Moe, oom::Kind::kModelAdapter, "qwen3_moe", "0.1.0", "Qwen3-MoE: grouped-query attention with query and key norms, routed experts")
