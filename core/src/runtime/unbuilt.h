/// The one place that refuses what plans may say but this version cannot do yet. Whoever builds a part removes its line.
#pragma once

#include <string>

#include "oom/plan.h"

namespace oom::runtime {

/// Throws one FileError with file, key and what can be given instead, for every such key.
void refuse_unbuilt(const Plan& plan, const std::string& path);

}  // namespace oom::runtime
