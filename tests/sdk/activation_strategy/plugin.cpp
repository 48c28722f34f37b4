// The whole entry of a plugin: the class, its kind, the NAME of liboom_NAME.so, a version, a line for lists.
#include <oom/plugin.h>

#include "on_device.h"

OOM_PLUGIN(on_device::OnDevice, oom::Kind::kActivationStrategy, "on_device", "0.1.0", "Keeps every layer's input on its GPU and replays layers in the backward")
