#include <iostream>

#include "checkpoint/manifest.h"
#include "cli/command_line.h"
#include "cli/inspection.h"
#include "oom/error.h"

namespace oom::cli {
namespace {

namespace fs = std::filesystem;

Inspection inspect(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) throw FileError(cat(path.string(), ": there is no such file or folder"));
  if (fs::is_directory(status)) {
    // A checkpoint holds its model's config.json too.
    if (fs::exists(path / checkpoint::kManifestName, error)) return inspect_checkpoint(path);
    if (fs::exists(path / "config.json", error)) return inspect_model(path);
    throw FileError(cat(path.string(), ": neither a Hugging Face folder (it has no config.json) nor a checkpoint (no ", checkpoint::kManifestName, ")"));
  }
  const std::string extension = path.extension().string();
  if (extension == ".json") return inspect_model(path);
  if (extension == ".toml") return inspect_plan(path);
  if (extension == ".so") return inspect_plugin(path);
  throw FileError(cat(path.string(), ": nothing that can be inspected; give a Hugging Face folder or its config.json, a checkpoint's folder, a plan (.toml) or a plugin (.so)"));
}

}  // namespace

int run_inspect(const CommandLine& line) {
  const Inspection found = inspect(line.path);
  std::cout << (line.has("json") ? found.json.dump(2) + "\n" : found.text) << std::flush;
  if (!found.fault.empty()) throw FileError(found.fault);
  return 0;
}

}  // namespace oom::cli
