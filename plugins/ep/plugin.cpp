#include <oom/plugin.h>

#include "ep.h"

OOM_PLUGIN(oom::ep::Ep, oom::Kind::kExpertStrategy, "ep", "0.1.0", "Each GPU owns a share of every layer's experts; tokens travel")
