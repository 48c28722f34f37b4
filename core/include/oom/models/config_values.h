/// What numbers of a config.json may be: it is untrusted text. Each throws FileError with file, key, value and what would do.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "oom/model_config.h"

namespace oom::models {

/// Each value is positive and far enough below 2^63 that products of sizes stay within 64 bits.
OOM_API void require_sizes(const ModelConfig& config, std::initializer_list<std::pair<const char*, int64_t>> sizes);
/// A number of layers that a model may have.
OOM_API void require_layer_count(const ModelConfig& config, int64_t layers);
OOM_API void require_positive(const ModelConfig& config, const std::string& key, double value);
OOM_API void require_not_negative(const ModelConfig& config, const std::string& key, double value);
/// Layer indices: from 0 to `layers` - 1, each once.
OOM_API void require_layer_indices(const ModelConfig& config, const char* key, const std::vector<int64_t>& indices, int64_t layers);

}  // namespace oom::models
