/// TensorBoard's event files: records with length and masked CRC-32C, each an Event protobuf of scalars.
///
/// The file mirrors metrics.jsonl: when a run starts it is made from the lines that are there, then each step appends a record. So a resumed run
/// tells no step twice, and the same lines give the same bytes.
#pragma once

#include <filesystem>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace oom::observe {

/// The record that begins a file: its format's version.
std::string event_file_header();
/// A record with every number of `metrics` but its step and time: "loss", and "gpu_peak_bytes/0" for the elements of a list. Numbers that are not
/// finite are left out. With tokens and step_seconds also "tokens_per_second".
std::string event_record(const nlohmann::json& metrics);

class EventFile {
 public:
  /// Makes `folder` and its file anew from the lines of `metrics`, a metrics.jsonl.
  EventFile(const std::filesystem::path& folder, const std::filesystem::path& metrics);
  void append(const nlohmann::json& metrics) const;

 private:
  std::filesystem::path path_;
};

}  // namespace oom::observe
