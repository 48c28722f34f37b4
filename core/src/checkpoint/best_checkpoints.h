/// Which checkpoints of a run had the lowest evaluation loss, and FOLDER/best, a link to the best of them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace oom::checkpoint {

/// The text file of a checkpoint whose state was evaluated: {"loss": 4.25, "tokens": 65536}.
inline constexpr const char* kEvaluationName = "evaluation.json";
/// The link beside the checkpoints.
inline constexpr const char* kBestName = "best";

std::string format_evaluation(double loss, int64_t tokens);

/// Returns the names ("step-000100") of the complete checkpoints of `folder` that were evaluated, lowest loss first, the newer of equals first, at
/// most `count`. Damaged ones, and losses that are no number or of no token, are left out.
std::vector<std::string> best_checkpoints(const std::filesystem::path& folder, int64_t count);

/// Points FOLDER/best at the checkpoint `name`, atomically: whoever follows the link finds the old one or the new one. With an empty name the link
/// is removed. Throws FileError.
void mark_best(const std::filesystem::path& folder, const std::string& name);

}  // namespace oom::checkpoint
