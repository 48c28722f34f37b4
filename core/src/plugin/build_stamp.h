/// The engine's own build stamp, and the comparison with a plugin's.
#pragma once

#include <string>
#include <vector>

#include "oom/build_stamp.h"

namespace oom::plugin {

/// One field that differs.
struct StampDifference {
  std::string field;  ///< "LibTorch"
  std::string plugin;
  std::string engine;
};

/// Returns how this core library was built.
const OomBuildStamp& engine_stamp();

/// Returns every field that differs, in the stamp's order. A field that `plugin` does not have (an older, shorter stamp) or holds as null
/// counts as "unknown".
std::vector<StampDifference> stamp_differences(const OomBuildStamp& plugin, const OomBuildStamp& engine);

/// Returns "another LibTorch: plugin 2.7.1, engine 2.8.0; another compiler: ..."; `differences` is not empty.
std::string describe_differences(const std::vector<StampDifference>& differences);

/// Returns the stamp as "field: value" lines, for oom inspect and oom doctor.
std::vector<std::string> stamp_lines(const OomBuildStamp& stamp);

}  // namespace oom::plugin
