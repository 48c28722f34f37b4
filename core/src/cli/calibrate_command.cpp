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
  runtime::Session session(line.path, line.overrides);
  const std::string cache = runtime::cached_calibration_path(runtime::machine_of(session));
  plan::Calibration known;
  std::error_code ignored;
  if (std::filesystem::exists(cache, ignored)) {
    // What is damaged is measured anew.
    try {
      known = plan::load_calibration(cache);
    } catch (const FileError& error) {
      log_warn("calibrate: the cached file is made anew: ", error.what());
    }
  }
  if (line.has("again")) forget_profiles(session, known);
  const bool is_known = runtime::uncalibrated(session, known).empty();
  if (is_known) std::cout << "already calibrated for this model, machine and these versions; --again measures anew\n";
  const plan::Calibration calibration = is_known ? known : runtime::calibrate(line.path, line.overrides, std::move(known));
  const std::string text = plan::calibration_toml(calibration);
  write_calibration(cache, text);
  if (const std::optional<std::string> out = line.option("out")) write_calibration(*out, text);
  for (const plan::CalibrationProfile& profile : calibration.profiles) std::cout << "  " << profile.experts << ": " << profile.geometry << ", " << profile.kinds.size() << " kinds of stages\n";
  return 0;
}

}  // namespace oom::cli
