#include "oom/models/config_values.h"

#include <cmath>
#include <set>

namespace oom::models {

void require_sizes(const ModelConfig& config, std::initializer_list<std::pair<const char*, int64_t>> sizes) {
  constexpr int64_t kMost = 1 << 20;
  for (const auto& [key, value] : sizes) {
    if (value <= 0 || value > kMost) throw FileError(cat(config.source(), ": ", key, ": must be from 1 to ", kMost, "; got ", value));
  }
}

void require_layer_count(const ModelConfig& config, int64_t layers) {
  constexpr int64_t kMost = 10000;
  if (layers <= 0 || layers > kMost) throw FileError(cat(config.source(), ": num_hidden_layers: must be from 1 to ", kMost, "; got ", layers));
}

void require_positive(const ModelConfig& config, const std::string& key, double value) {
  if (!(value > 0) || !std::isfinite(value)) throw FileError(cat(config.source(), ": ", key, ": must be greater than 0; got ", value));
}

void require_not_negative(const ModelConfig& config, const std::string& key, double value) {
  if (!(value >= 0) || !std::isfinite(value)) throw FileError(cat(config.source(), ": ", key, ": must be at least 0; got ", value));
}

void require_layer_indices(const ModelConfig& config, const char* key, const std::vector<int64_t>& indices, int64_t layers) {
  std::set<int64_t> seen;
  for (const int64_t index : indices) {
    if (index < 0 || index >= layers) throw FileError(cat(config.source(), ": ", key, ": must name layers from 0 to ", layers - 1, "; got ", index));
    if (!seen.insert(index).second) throw FileError(cat(config.source(), ": ", key, ": must name a layer once; got ", index, " twice"));
  }
}

}  // namespace oom::models
