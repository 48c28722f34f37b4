#include "observe/event_file.h"

#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "observe/crc32c.h"
#include "observe/json_lines.h"
#include "oom/error.h"

namespace oom::observe {
namespace {

constexpr const char* kName = "events.out.tfevents.oom";  // readers look for the middle of it

template <typename Integer>
std::string little_endian(Integer value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof value; ++i) bytes += static_cast<char>(value >> 8 * i & 255);
  return bytes;
}

// Protobuf's wire format: a field is its number and type, then its value.
enum class Wire { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 128; value /= 128) bytes += static_cast<char>(value % 128 + 128);
  return bytes + static_cast<char>(value);
}
std::string key(int number, Wire wire) { return varint(static_cast<uint64_t>(number) << 3 | static_cast<uint64_t>(wire)); }
std::string field(int number, double value) { return key(number, Wire::kFixed64) + little_endian(std::bit_cast<uint64_t>(value)); }
std::string field(int number, float value) { return key(number, Wire::kFixed32) + little_endian(std::bit_cast<uint32_t>(value)); }
std::string field(int number, int64_t value) { return key(number, Wire::kVarint) + varint(static_cast<uint64_t>(value)); }
std::string field(int number, const std::string& bytes) { return key(number, Wire::kBytes) + varint(bytes.size()) + bytes; }

// Numbers of fields in tensorflow/core/util/event.proto and framework/summary.proto.
namespace event {
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5;
}
namespace summary {
constexpr int kValue = 1, kTag = 1, kSimpleValue = 2;
}

std::string record(const std::string& data) {
  const std::string length = little_endian(static_cast<uint64_t>(data.size()));
  return length + little_endian(masked_crc32c(length)) + data + little_endian(masked_crc32c(data));
}

void add_scalar(std::string& values, const std::string& tag, const nlohmann::json& value) {
  if (!value.is_number() || !std::isfinite(value.get<double>())) return;
  values += field(summary::kValue, field(summary::kTag, tag) + field(summary::kSimpleValue, static_cast<float>(value.get<double>())));
}

double number_or(const nlohmann::json& object, const char* name, double otherwise) {
  const auto at = object.find(name);
  return at != object.end() && at->is_number() ? at->get<double>() : otherwise;
}

}  // namespace

std::string event_file_header() { return record(field(event::kWallTime, 0.0) + field(event::kFileVersion, std::string("brain.Event:2"))); }

std::string event_record(const nlohmann::json& metrics) {
  std::string values;
  for (const auto& [name, value] : metrics.items()) {
    if (name == "step" || name == "time") continue;
    if (!value.is_array()) add_scalar(values, name, value);
    for (size_t i = 0; value.is_array() && i < value.size(); ++i) add_scalar(values, cat(name, "/", i), value[i]);
  }
  const double seconds = number_or(metrics, "step_seconds", 0);
  if (seconds > 0) add_scalar(values, "tokens_per_second", number_or(metrics, "tokens", 0) / seconds);
  return record(field(event::kWallTime, number_or(metrics, "time", 0)) + field(event::kStep, static_cast<int64_t>(number_or(metrics, "step", 0))) + field(event::kSummary, values));
}

EventFile::EventFile(const std::filesystem::path& folder, const std::filesystem::path& metrics) : path_(folder / kName) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw FileError(cat(folder.string(), ": cannot be made: ", error.message()));
  std::string bytes = event_file_header();
  for (const nlohmann::json& line : read_json_lines(metrics).objects) bytes += event_record(line);
  base::replace_text_file(path_, bytes);
}

void EventFile::append(const nlohmann::json& metrics) const {
  const std::string bytes = event_record(metrics);
  base::File::extend(path_).append(std::as_bytes(std::span(bytes)));
}

}  // namespace oom::observe
