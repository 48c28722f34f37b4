#include <oom/plugin.h>

#include "mixtral.h"

OOM_PLUGIN(oom::mixtral::Mixtral, oom::Kind::kModelAdapter, "mixtral", "0.1.0", "Mixtral: grouped-query attention, with a sliding window where config.json has one, routed experts")
