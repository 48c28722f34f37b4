#include "checkpoint/best_checkpoints.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <system_error>

#include "base/file.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/json_text.h"
#include "oom/error.h"

namespace oom::checkpoint {
namespace {

struct Ranked {
  double loss;
  int64_t step;
  std::string name;
};

std::optional<Ranked> read_ranked(const std::filesystem::path& path) {
  try {
    const CheckpointReader reader(path);
    if (!reader.has_text(kEvaluationName)) return std::nullopt;
    const std::filesystem::path file = path / kEvaluationName;
    const nlohmann::json json = parse_json(reader.text(kEvaluationName), file);
    const nlohmann::json& loss = json_member(json, "loss", file);
    if (!loss.is_number() || !std::isfinite(loss.get<double>()) || json_count(json_member(json, "tokens", file), "tokens", file) == 0) return std::nullopt;
    return Ranked{loss.get<double>(), reader.state().step, path.filename().string()};
  } catch (const FileError&) {
    return std::nullopt;
  }
}

}  // namespace

std::string format_evaluation(double loss, int64_t tokens) { return nlohmann::ordered_json{{"loss", loss}, {"tokens", tokens}}.dump() + "\n"; }

std::vector<std::string> best_checkpoints(const std::filesystem::path& folder, int64_t count) {
  std::vector<Ranked> ranked;
  for (const std::filesystem::path& path : checkpoint_paths(folder)) {
    if (std::optional<Ranked> found = read_ranked(path)) ranked.push_back(std::move(*found));
  }
  std::sort(ranked.begin(), ranked.end(), [](const Ranked& left, const Ranked& right) { return left.loss != right.loss ? left.loss < right.loss : left.step > right.step; });
  std::vector<std::string> names;
  for (const Ranked& each : ranked) {
    if (static_cast<int64_t>(names.size()) < count) names.push_back(each.name);
  }
  return names;
}

void mark_best(const std::filesystem::path& folder, const std::string& name) {
  const std::filesystem::path link = folder / kBestName;
  const std::filesystem::path made = folder / cat(kBestName, ".tmp");
  std::error_code error;
  const std::filesystem::path now = std::filesystem::read_symlink(link, error);
  if (error ? name.empty() : now == name) return;  // an error: there is no link
  error.clear();
  if (name.empty()) {
    std::filesystem::remove(link, error);
  } else {
    std::filesystem::remove(made, error);
    if (!error) std::filesystem::create_symlink(name, made, error);
    if (!error) std::filesystem::rename(made, link, error);
  }
  if (error) throw FileError(cat(link.string(), ": the link to the best checkpoint cannot be changed: ", error.message()));
  base::sync_folder(folder);
}

}  // namespace oom::checkpoint
