#include "oom/model_config.h"

#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/json_text.h"

namespace oom {
inline namespace abi_1 {

using Json = nlohmann::json;

struct ModelConfig::Node {
  std::string source;
  std::string text;
  std::string path;  // "" or "text_config."
  Json json;
  std::set<std::string> known;
  std::vector<std::shared_ptr<Node>> children;
};

namespace {

// A value as a message shows it: a file may hold megabytes of it.
std::string shown(const Json& json) {
  constexpr size_t kLongest = 100;
  std::string text = json.dump();
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

template <typename Value>
bool holds(const Json& json);
template <>
bool holds<int64_t>(const Json& json) { return json.is_number_integer(); }
template <>
bool holds<double>(const Json& json) { return json.is_number(); }
template <>
bool holds<bool>(const Json& json) { return json.is_boolean(); }
template <>
bool holds<std::string>(const Json& json) { return json.is_string(); }
template <>
bool holds<std::vector<int64_t>>(const Json& json) {
  return json.is_array() && std::all_of(json.begin(), json.end(), [](const Json& item) { return item.is_number_integer(); });
}
template <>
bool holds<std::vector<std::string>>(const Json& json) {
  return json.is_array() && std::all_of(json.begin(), json.end(), [](const Json& item) { return item.is_string(); });
}

}  // namespace

namespace {

// Reads one value of a node, or raises what is wrong with it.
template <typename Value, typename Node>
Value read(Node& node, const std::string& key, const char* type, const Value* otherwise) {
  node.known.insert(key);
  const auto at = node.json.find(key);
  if (at == node.json.end() || at->is_null()) {
    if (otherwise) return *otherwise;
    throw FileError(cat(node.source, ": ", node.path, key, ": missing; this model family needs ", type));
  }
  if (!holds<Value>(*at)) throw FileError(cat(node.source, ": ", node.path, key, ": must be ", type, "; got ", shown(*at)));
  return at->template get<Value>();
}

}  // namespace

ModelConfig::ModelConfig(std::shared_ptr<Node> node) : node_(std::move(node)) {}
ModelConfig::ModelConfig(ModelConfig&&) noexcept = default;
ModelConfig& ModelConfig::operator=(ModelConfig&&) noexcept = default;
ModelConfig::~ModelConfig() = default;

ModelConfig ModelConfig::parse(const std::string& text, const std::string& source) {
  Json json = checkpoint::parse_json(text, source);
  if (!json.is_object()) throw FileError(cat(source, ": must hold a JSON object; got ", json.type_name()));
  auto node = std::make_shared<Node>();
  node->source = source;
  node->text = text;
  node->json = std::move(json);
  return ModelConfig(std::move(node));
}

const std::string& ModelConfig::source() const { return node_->source; }
const std::string& ModelConfig::text() const { return node_->text; }
bool ModelConfig::has(const std::string& key) const {
  const auto at = node_->json.find(key);
  return at != node_->json.end() && !at->is_null();
}

int64_t ModelConfig::integer(const std::string& key) const { return read<int64_t>(*node_, key, "an integer", nullptr); }
double ModelConfig::number(const std::string& key) const { return read<double>(*node_, key, "a number", nullptr); }
bool ModelConfig::flag(const std::string& key) const { return read<bool>(*node_, key, "true or false", nullptr); }
std::string ModelConfig::string(const std::string& key) const { return read<std::string>(*node_, key, "text", nullptr); }
std::vector<int64_t> ModelConfig::integers(const std::string& key) const {
  return read<std::vector<int64_t>>(*node_, key, "a list of integers", nullptr);
}
std::vector<std::string> ModelConfig::strings(const std::string& key) const {
  return read<std::vector<std::string>>(*node_, key, "a list of texts", nullptr);
}
int64_t ModelConfig::integer(const std::string& key, int64_t otherwise) const { return read(*node_, key, "an integer", &otherwise); }
double ModelConfig::number(const std::string& key, double otherwise) const { return read(*node_, key, "a number", &otherwise); }
bool ModelConfig::flag(const std::string& key, bool otherwise) const { return read(*node_, key, "true or false", &otherwise); }
std::string ModelConfig::string(const std::string& key, const std::string& otherwise) const { return read(*node_, key, "text", &otherwise); }
std::vector<int64_t> ModelConfig::integers(const std::string& key, const std::vector<int64_t>& otherwise) const {
  return read(*node_, key, "a list of integers", &otherwise);
}

std::optional<ModelConfig> ModelConfig::child(const std::string& key) const {
  node_->known.insert(key);
  const auto at = node_->json.find(key);
  if (at == node_->json.end() || at->is_null()) return std::nullopt;
  if (!at->is_object()) throw FileError(cat(node_->source, ": ", node_->path, key, ": must be an object; got ", shown(*at)));
  auto node = std::make_shared<Node>();
  node->source = node_->source;
  node->text = at->dump();
  node->path = node_->path + key + ".";
  node->json = *at;
  node_->children.push_back(node);
  return ModelConfig(std::move(node));
}

void ModelConfig::ignore(std::initializer_list<const char*> keys) const {
  for (const char* key : keys) node_->known.insert(key);
}

void ModelConfig::require(const std::string& key, const std::string& json_value, const std::string& why) const {
  node_->known.insert(key);
  const auto at = node_->json.find(key);
  if (at == node_->json.end() || at->is_null() || *at == Json::parse(json_value)) return;
  throw FileError(cat(node_->source, ": ", node_->path, key, ": ", why, "; got ", shown(*at), ", only ", json_value, " is implemented"));
}

void ModelConfig::finish() const {
  std::string unknown;
  std::vector<const Node*> open{node_.get()};
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    for (const auto& [key, value] : node->json.items()) {
      if (node->known.count(key) || value.is_null()) continue;
      unknown += cat(unknown.empty() ? "" : ", ", node->path, key, " = ", shown(value));
    }
    for (const auto& child : node->children) open.push_back(child.get());
  }
  if (!unknown.empty()) {
    throw FileError(cat(node_->source, ": not understood: ", unknown,
                        ". A key that changes the model must be implemented before it can be trained; remove it if it has no effect"));
  }
}

}  // namespace abi_1
}  // namespace oom
