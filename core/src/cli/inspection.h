/// What `oom inspect` finds out about a file or folder: each kind as data, with a text made from it.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace oom::cli {

struct Inspection {
  nlohmann::ordered_json json;  ///< "kind": model | checkpoint | plan | plugin, then what that kind has
  std::string text;             ///< the same for people
  std::string fault;            ///< what makes it unusable; empty: nothing found. The command prints the rest first, then fails
};

/// A Hugging Face folder, or a config.json alone. Weights are matched by name, shape and dtype; their values are not read.
Inspection inspect_model(const std::filesystem::path& path);
/// A training checkpoint: reads every byte and compares the checksums.
Inspection inspect_checkpoint(const std::filesystem::path& folder);
/// A plan file, validated.
Inspection inspect_plan(const std::filesystem::path& file);
/// A plugin library: judged from outside first, then loaded.
Inspection inspect_plugin(const std::filesystem::path& file);

/// Thousands grouped, right-aligned in `width`.
std::string grouped(int64_t value, size_t width = 0);

}  // namespace oom::cli
