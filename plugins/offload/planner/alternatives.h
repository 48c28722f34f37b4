/// Stronger policies for plans that do not fit: a short list, each of which costs more time or host memory and takes less of the GPU's or the host's.
#pragma once

#include "../policy.h"

namespace oom::offload {

/// Tables for a plan whose settings resolved to `plan`; keys that the user gave stay as they are. The last takes the least memory.
std::vector<std::map<std::string, std::string>> alternatives(const SettingsTable& given, const ModelDescription& model, const Plan& plan);

}  // namespace oom::offload
