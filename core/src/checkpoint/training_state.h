/// What a training checkpoint holds besides tensors: everything a run needs to go on as if it had never stopped.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

namespace oom::checkpoint {

struct TrainingState {
  int64_t step = 0;     ///< steps done
  int64_t samples = 0;  ///< samples consumed: the position in the order of samples (data/sample_stream.h)
  /// AdamW's step counter of each tensor; tensors that are not named have had `step` updates.
  std::map<std::string, int64_t> updates;
  std::map<std::string, double> schedule;       ///< numbers the schedule goes on from, such as "learning_rate"
  std::map<std::string, std::string> random;    ///< states of random number generators by name
  std::map<std::string, std::string> versions;  ///< of the program and its libraries
  std::string config;                           ///< the resolved configuration, TOML

  bool operator==(const TrainingState&) const = default;
};

/// Returns the state as JSON. A number that is not finite is an Error.
std::string format_training_state(const TrainingState& state);
/// Parses it; anything missing or misshapen is a FileError that names `file` and key.
TrainingState parse_training_state(const std::string& text, const std::filesystem::path& file);

}  // namespace oom::checkpoint
