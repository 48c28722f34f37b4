#include "checkpoint/training_state.h"

#include <cmath>

#include "checkpoint/json_text.h"
#include "oom/error.h"

namespace oom::checkpoint {
namespace {

template <typename Value, typename Convert>
std::map<std::string, Value> map_member(const nlohmann::json& json, const char* key, const std::filesystem::path& file, Convert convert) {
  const auto& object = json_member(json, key, file);
  if (!object.is_object()) throw FileError(cat(file.string(), ": ", key, " must be an object; got ", object.type_name()));
  std::map<std::string, Value> result;
  for (const auto& [name, value] : object.items()) result[name] = convert(value, cat(key, ".", name), file);
  return result;
}

double number(const nlohmann::json& value, const std::string& key, const std::filesystem::path& file) {
  if (!value.is_number()) throw FileError(cat(file.string(), ": ", key, " must be a number; got ", value.type_name()));
  return value.get<double>();
}

}  // namespace

std::string format_training_state(const TrainingState& state) {
  for (const auto& [name, value] : state.schedule) OOM_CHECK(std::isfinite(value), "schedule.", name, " = ", value);
  const nlohmann::json json{{"step", static_cast<uint64_t>(state.step)},
                            {"samples", static_cast<uint64_t>(state.samples)},
                            {"updates", state.updates},
                            {"schedule", state.schedule},
                            {"random", state.random},
                            {"versions", state.versions},
                            {"config", state.config}};
  return json.dump(1) + "\n";
}

TrainingState parse_training_state(const std::string& text, const std::filesystem::path& file) {
  const nlohmann::json json = parse_json(text, file);
  TrainingState state;
  state.step = json_count(json_member(json, "step", file), "step", file);
  state.samples = json_count(json_member(json, "samples", file), "samples", file);
  state.updates = map_member<int64_t>(json, "updates", file, json_count);
  state.schedule = map_member<double>(json, "schedule", file, number);
  state.random = map_member<std::string>(json, "random", file, json_string);
  state.versions = map_member<std::string>(json, "versions", file, json_string);
  state.config = json_string(json_member(json, "config", file), "config", file);
  return state;
}

}  // namespace oom::checkpoint
