// Right in itself; asked for as an expert strategy.
#include "descriptor.h"

OOM_PLUGIN(Harmless, oom::Kind::kSelector, "wrong_kind", "1.0.0", "A selector")
