#include <oom/plugin.h>

#include "only_candidate.h"

OOM_PLUGIN(oom::selector::OnlyCandidate, oom::Kind::kSelector, "selector", "0.1.0", "Takes the fastest predicted candidate that fits")
