/// What this machine and this build offer, as data: versions, GPUs and links, NUMA nodes, limits, bandwidths, core map, plugins.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace oom::cli {

/// Measures for a second or two. What cannot be found out is left out or says why.
nlohmann::ordered_json machine_report();
/// The report for people.
std::string machine_text(const nlohmann::ordered_json& report);

}  // namespace oom::cli
