#include <map>

#include "base/file.h"
#include "base/text.h"
#include "checkpoint/hf_directory.h"
#include "cli/inspection.h"
#include "oom/error.h"
#include "runtime/model_files.h"
#include "runtime/session.h"
#include "runtime/tied_embeddings.h"

namespace oom::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int64_t kStateBytes = 12;  // FP32 master and two moments of a parameter
constexpr int64_t kLargestConfigBytes = int64_t{64} << 20;

struct RoleCount {
  int64_t tensors = 0;
  int64_t parameters = 0;
};

std::map<ParameterRole, RoleCount> count_roles(const ModelDescription& model) {
  std::map<ParameterRole, RoleCount> roles;
  for (const ParameterSpec& parameter : model.parameters) {
    RoleCount& count = roles[parameter.role];
    ++count.tensors;
    count.parameters += parameter.elements();
  }
  return roles;
}

// "full_attention + moe" -> number of layers, in the order of first appearance.
std::vector<std::pair<std::string, int>> count_layers(const ModelDescription& model) {
  std::vector<std::pair<std::string, int>> kinds;
  for (const LayerSpec& layer : model.layers) {
    const std::string kind = cat(layer.mixer, " + ", layer.feed_forward);
    const auto found = std::find_if(kinds.begin(), kinds.end(), [&](const auto& known) { return known.first == kind; });
    if (found == kinds.end()) kinds.emplace_back(kind, 1);
    else ++found->second;
  }
  return kinds;
}

void describe_model(const ModelDescription& model, Inspection& found) {
  found.json["family"] = model.family;
  found.json["hidden"] = model.hidden;
  found.json["vocabulary"] = model.vocabulary;
  found.json["tied_embeddings"] = model.tied_embeddings;
  std::string& text = found.text;
  text += cat("family      ", model.family, ", hidden ", model.hidden, ", vocabulary ", grouped(model.vocabulary), model.tied_embeddings ? ", tied embeddings" : "", "\n");
  Json& layers = found.json["layers"] = Json::object();
  const char* head = "layers      ";
  for (const auto& [kind, count] : count_layers(model)) {
    layers[kind] = count;
    text += cat(head, count, " of ", kind, "\n");
    head = "            ";
  }
  if (model.routed.experts > 0) {
    found.json["experts"] = {{"count", model.routed.experts}, {"top_k", model.routed.top_k}, {"width", model.routed.width}};
    text += cat("experts     ", model.routed.experts, " a layer, ", model.routed.top_k, " for a token, width ", model.routed.width, "\n");
  }
  text += "\nrole               tensors       parameters\n";
  Json& roles = found.json["roles"] = Json::object();
  for (const auto& [role, count] : count_roles(model)) {
    roles[role_name(role)] = {{"tensors", count.tensors}, {"parameters", count.parameters}};
    std::string name = role_name(role);
    name.resize(16, ' ');
    text += cat(name, grouped(count.tensors, 10), grouped(count.parameters, 17), "\n");
  }
  const int64_t total = model.total_parameters(), active = model.active_parameters();
  found.json["parameters"] = total;
  found.json["active_parameters"] = active;
  found.json["state_bytes"] = total * kStateBytes;
  text += cat("total           ", grouped(static_cast<int64_t>(model.parameters.size()), 10), grouped(total, 17), "\nactive for a token        ", grouped(active, 17), "\n");
  text += cat("\nstate       ", base::format_bytes(total * kStateBytes), ": FP32 masters and two moments, ", kStateBytes, " B a parameter\n");
}

std::string layout_words(const std::vector<runtime::ChosenLayout>& layouts, const ModelDescription& model) {
  int64_t whole = 0, divided = 0, pieces = 0;
  for (const runtime::ChosenLayout& layout : layouts) {
    if (layout.pieces.size() == 1) {
      ++whole;
      continue;
    }
    ++divided;
    pieces += static_cast<int64_t>(layout.pieces.size());
  }
  std::string text = cat(grouped(whole), " parameters as they are");
  if (divided > 0) text += cat(", ", grouped(divided), " out of ", grouped(pieces), " tensors");
  if (model.routed.experts > 0) text += divided > 0 ? " (an expert at a time)" : " (experts fused)";
  return text;
}

void describe_weights(const fs::path& folder, const ModelDescription& model, Inspection& found) {
  const checkpoint::HfDirectory files(folder);
  std::map<std::string, int64_t> dtypes;
  std::map<fs::path, int> paths;
  for (const checkpoint::TensorPlace* tensor : files.tensors()) {
    dtypes[std::string(checkpoint::dtype_name(tensor->dtype))] += tensor->bytes();
    ++paths[files.file_of(tensor->name)];
  }
  Json& weights = found.json["weights"] = {{"files", paths.size()}, {"tensors", files.tensors().size()}};
  found.text += cat("weights     ", grouped(static_cast<int64_t>(files.tensors().size())), " tensors in ", paths.size(), paths.size() == 1 ? " file" : " files");
  for (const auto& [dtype, bytes] : dtypes) {
    weights["dtypes"][dtype] = bytes;
    found.text += cat(", ", base::format_bytes(bytes), " of ", dtype);
  }
  found.text += "\n";
  try {
    const std::string layout = layout_words(runtime::match_layouts(files, model), model);
    weights["layout"] = layout;
    found.text += cat("layout      ", layout, "\n");
  } catch (const FileError& error) {
    weights["fault"] = found.fault = error.what();
  }
}

bool holds_weights(const fs::path& folder) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".safetensors" || entry.path().filename() == "model.safetensors.index.json") return true;
  }
  return false;
}

}  // namespace

std::string grouped(int64_t value, size_t width) {
  const std::string digits = base::group_digits(value);
  return digits.size() < width ? std::string(width - digits.size(), ' ') + digits : digits;
}

Inspection inspect_model(const fs::path& path) {
  const bool folder = fs::is_directory(path);
  const fs::path file = folder ? path / "config.json" : path;
  runtime::PluginHost plugins({});
  std::string text = base::read_text_file(file, kLargestConfigBytes);
  if (folder) text = runtime::settle_tied_embeddings(plugins, text, path);
  const runtime::LoadedModel model = plugins.load_model(text, file.string(), {}, /*with_operators=*/false);
  Inspection found;
  found.json = {{"kind", "model"}, {"path", path.string()}};
  found.text = cat("model       ", path.string(), "\n");
  describe_model(model.description, found);
  if (folder && holds_weights(path)) {
    describe_weights(path, model.description, found);
  } else {
    found.text += "weights     none here\n";
  }
  return found;
}

}  // namespace oom::cli
