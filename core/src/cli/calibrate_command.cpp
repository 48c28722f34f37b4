#include <cstring>
#include <filesystem>
#include <iostream>

#include "base/file.h"
#include "base/text.h"
#include "cli/command_line.h"
#include "runtime/calibrate.h"

namespace oom::cli {
namespace {

void write_calibration(const std::string& path, const std::string& text) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  base::overwrite_text_file(path, text);
  std::cout << "calibration: " << path << "\n";
}

}  // namespace

int run_calibrate(const CommandLine& line) {
  const std::string cache = runtime::cached_calibration_path(runtime::machine_of(runtime::Session(line.path, line.overrides)));
  plan::Calibration known;
  std::error_code ignored;
  if (std::filesystem::exists(cache, ignored)) {
    // What was measured with other libraries, or is damaged, is measured anew.
    try {
      known = plan::load_calibration(cache);
      if (known.versions != runtime::calibrated_versions()) known = {};
    } catch (const FileError& error) {
      log_warn("calibrate: the cached file is made anew: ", error.what());
    }
  }
  const plan::Calibration calibration = runtime::calibrate(line.path, line.overrides, std::move(known));
  const std::string text = plan::calibration_toml(calibration);
  write_calibration(cache, text);
  if (const std::optional<std::string> out = line.option("out")) write_calibration(*out, text);
  for (const plan::CalibrationProfile& profile : calibration.profiles) std::cout << "  " << profile.experts << ": " << profile.geometry << ", " << profile.kinds.size() << " kinds of stages\n";
  return 0;
}

}  // namespace oom::cli
