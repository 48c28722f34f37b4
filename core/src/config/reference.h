/// The commented reference of every key, made from the schemas.
#pragma once

#include <span>
#include <string>

#include "oom/settings.h"

namespace oom::config {

/// Returns TOML with every key of the core and of `plugin_schemas`: sentence, accepted values, unit, range and default. It loads:
/// keys with a default stand there with it, required ones with an example, the others in comments.
std::string reference_toml(std::span<const SettingsSchema> plugin_schemas);

/// Returns nothing when the file at `path` is `reference_toml(plugin_schemas)`, else its first line that differs, and the cure.
/// When the environment has OOM_WRITE_REFERENCE, writes the file first.
std::string check_reference(const std::string& path, std::span<const SettingsSchema> plugin_schemas);

}  // namespace oom::config
