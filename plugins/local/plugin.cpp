#include <oom/plugin.h>

#include "local.h"

OOM_PLUGIN(oom::local::Local, oom::Kind::kExpertStrategy, "local", "0.1.0", "Streams each layer's whole expert bank to every GPU; tokens stay")
