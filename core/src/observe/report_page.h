/// The report's page: a template with its style and scripts, which are files of observe/page, and the data between them.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace oom::observe {

/// Returns one HTML document that refers to nothing outside itself. Whatever `data` holds is text on it, never markup.
std::string report_page(const nlohmann::ordered_json& data);

}  // namespace oom::observe
