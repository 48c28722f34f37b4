/// The one place that refuses what configurations and plans may say but this version cannot do yet. Whoever builds a part removes its line.
#pragma once

#include <map>
#include <string>

#include "config/config.h"
#include "oom/plan.h"

namespace oom::runtime {

/// Throws one ConfigError with place, key, value and what can be given instead, for every such key.
void refuse_unbuilt(const config::Config& config);
/// The same for a plan file: FileError.
void refuse_unbuilt(const Plan& plan, const std::string& path);
/// What configs/reference.toml says of these keys: a sentence by "table.key".
std::map<std::string, std::string> unbuilt_notes();

}  // namespace oom::runtime
