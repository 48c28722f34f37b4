// The whole entry of a plugin: the class, its kind, the NAME of liboom_NAME.so, a version, a line for lists.
#include <oom/plugin.h>

#include "whole_bank.h"

OOM_PLUGIN(whole_bank::WholeBank, oom::Kind::kExpertStrategy, "whole_bank", "0.1.0", "Every GPU gets a layer's whole bank and runs all experts over its own tokens")
