/// What numbers of a config.json may be, besides sizes (description.h). Each throws FileError with file, key, value and what would do.
#pragma once

#include <oom/model_config.h>

#include <string>
#include <vector>

namespace oom::models {

void require_positive(const ModelConfig& config, const std::string& key, double value);
void require_not_negative(const ModelConfig& config, const std::string& key, double value);
/// Layer indices: from 0 to `layers` - 1, each once.
void require_layer_indices(const ModelConfig& config, const char* key, const std::vector<int64_t>& indices, int64_t layers);

}  // namespace oom::models
