/// Whether the head reads the embedding's tensor is decided by the tensors that are there: a config.json that says otherwise is corrected.
#pragma once

#include <filesystem>
#include <string>

#include "runtime/session.h"

namespace oom::runtime {

/// Returns `config_text`, the config.json of `folder`, with tie_word_embeddings as the folder's weights have it: false where they hold a head of
/// its own, true where they hold none. A correction is logged. Without weights, or when they cannot be opened, config.json is believed.
std::string settle_tied_embeddings(PluginHost& plugins, const std::string& config_text, const std::filesystem::path& folder);

}  // namespace oom::runtime
