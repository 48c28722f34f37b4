#include "model/first_layers.h"

#include <nlohmann/json.hpp>

#include "oom/error.h"

namespace oom {
namespace {

constexpr const char* kCount = "num_hidden_layers";
constexpr const char* kDenseLayers = "mlp_only_layers";  // indices of layers, not an element a layer

}  // namespace

std::string first_layers(const std::string& config_json, const std::string& source, int64_t layers) {
  nlohmann::ordered_json root = nlohmann::ordered_json::parse(config_json, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) throw FileError(cat(source, ": is no JSON object"));
  nlohmann::ordered_json& text = root.contains("text_config") && root["text_config"].is_object() ? root["text_config"] : root;
  if (!text.contains(kCount) || !text[kCount].is_number_integer()) throw FileError(cat(source, ": ", kCount, ": missing, so that the model cannot be cut to ", layers, " layers"));
  const int64_t all = text[kCount].get<int64_t>();
  if (layers < 1 || layers > all) throw FileError(cat(source, ": ", kCount, " = ", all, ": the model cannot be cut to ", layers, " layers"));
  text[kCount] = layers;
  for (auto& [key, value] : text.items()) {
    if (!value.is_array()) continue;
    if (key == kDenseLayers) {
      nlohmann::ordered_json kept = nlohmann::ordered_json::array();
      for (const auto& layer : value) {
        if (!layer.is_number_integer() || layer.get<int64_t>() < layers) kept.push_back(layer);
      }
      value = std::move(kept);
    } else if (static_cast<int64_t>(value.size()) == all) {
      value.erase(value.begin() + static_cast<std::ptrdiff_t>(layers), value.end());
    }
  }
  return root.dump(2);
}

}  // namespace oom
