#include "config_values.h"

#include <cmath>
#include <set>

namespace oom::models {

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
