#include "runtime/tied_embeddings.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "checkpoint/hf_directory.h"
#include "oom/log.h"

namespace oom::runtime {
namespace {

constexpr const char* kKey = "tie_word_embeddings";

std::unique_ptr<checkpoint::HfDirectory> open_weights(const std::filesystem::path& folder) {
  try {
    return std::make_unique<checkpoint::HfDirectory>(folder);
  } catch (const FileError&) {
    return nullptr;  // loading says what is wrong with them
  }
}

std::string with_key(const std::string& config_text, bool tied) {
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(config_text);
  json[kKey] = tied;
  // Of a model with several parts the text part has the key as well, or its family's default.
  if (const auto text = json.find("text_config"); text != json.end() && text->is_object()) (*text)[kKey] = tied;
  return json.dump(2) + "\n";
}

bool holds_head(const ModelDescription& untied, const checkpoint::HfDirectory& files) {
  for (const ParameterSpec& parameter : untied.parameters) {
    if (parameter.role != ParameterRole::kHead) continue;
    for (const FileLayout& layout : untied.file_layouts(parameter)) {
      if (std::all_of(layout.begin(), layout.end(), [&](const FilePiece& piece) { return files.find(piece.tensor) != nullptr; })) return true;
    }
  }
  return false;
}

}  // namespace

std::string settle_tied_embeddings(PluginHost& plugins, const std::string& config_text, const std::filesystem::path& folder) {
  const std::unique_ptr<checkpoint::HfDirectory> files = open_weights(folder);
  if (!files) return config_text;
  const std::string source = (folder / "config.json").string();
  const auto describe = [&](const std::string& text) { return plugins.load_model(text, source, {}, /*with_operators=*/false).description; };
  const ModelDescription described = describe(config_text);
  const bool tied = !holds_head(described.tied_embeddings ? describe(with_key(config_text, false)) : described, *files);
  if (tied == described.tied_embeddings) return config_text;
  log_warn("model: ", source, " says that the head ", tied ? "has weights of its own, and the files hold none: it reads the embedding's" : "reads the embedding's weights, and the files hold some for it: they are used");
  return with_key(config_text, tied);
}

}  // namespace oom::runtime
