#include <oom/plugin.h>

#include "configure_then_compare.h"

OOM_PLUGIN(oom::selector::ConfigureThenCompare, oom::Kind::kSelector, "selector", "0.2.0", "Runs each configured path briefly and installs the one measured faster")
