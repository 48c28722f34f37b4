/// What the report shows of a run folder, gathered from its files.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace oom::observe {

/// One JSON object: "title", "state", "notes" (what is damaged, half-written or of another version), "missing" (by part, a sentence with the key
/// that records it), and where there are any "metrics", "evaluation", "expert_load", "trace", "run" (run.json), "plan_toml", "config_toml".
/// A file that cannot be used leaves its part out and a note. Throws FileError when `folder` holds no run at all.
nlohmann::ordered_json report_data(const std::filesystem::path& folder);

}  // namespace oom::observe
