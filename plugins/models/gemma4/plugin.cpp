#include <oom/plugin.h>

#include "gemma4.h"

OOM_PLUGIN(oom::gemma4::Gemma4, oom::Kind::kModelAdapter, "gemma4", "0.1.0", "Gemma4: sliding and full attention with two head dimensions, a dense MLP beside routed experts")
