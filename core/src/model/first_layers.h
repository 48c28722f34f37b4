/// A model cut to its first decoder layers: for experiments and for short runs that stand for a deeper model.
#pragma once

#include <cstdint>
#include <string>

namespace oom {

/// Returns the config.json of the same model with `layers` decoder layers. The number of layers stands in num_hidden_layers, of the root or of
/// text_config; lists with an element a layer are cut with it, and indices of layers that are gone are dropped. Throws FileError, in the name of
/// `source`, when the text is no such object or has fewer layers.
std::string first_layers(const std::string& config_json, const std::string& source, int64_t layers);

}  // namespace oom
