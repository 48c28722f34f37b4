// Its file is called liboom_misnamed.so.
#include "descriptor.h"

OOM_PLUGIN(Harmless, oom::Kind::kExpertStrategy, "right_name", "1.0.0", "Calls itself something else")
