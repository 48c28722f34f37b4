/// A small checkpoint whose every value is known.
#pragma once

#include <cstring>

#include "checkpoint/checkpoint_folder.h"

namespace oom::checkpoint {

inline const std::vector<TensorInfo> kSmallTensors{
    {"embed", Dtype::kF32, {7, 5}}, {"norm", Dtype::kF32, {3}}, {"layers.0.experts", Dtype::kF32, {4, 6, 5}}, {"scale", Dtype::kF32, {}}, {"none", Dtype::kF32, {0}}};

inline float small_value(const TensorInfo& tensor, StateStream stream, int64_t element, int64_t step) {
  return static_cast<float>(step * 100000 + static_cast<int64_t>(stream) * 10000 + static_cast<int64_t>(tensor.name.size()) * 1000 + element);
}

/// Gives the values in pieces of `piece` elements.
inline StateSource small_source(int64_t step, size_t piece = 7) {
  return [=](const TensorInfo& tensor, StateStream stream, const FloatSink& sink) {
    std::vector<float> values(static_cast<size_t>(tensor.elements()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = small_value(tensor, stream, static_cast<int64_t>(i), step);
    for (size_t at = 0; at < values.size(); at += piece) sink(std::span(values).subspan(at, std::min(piece, values.size() - at)));
  };
}

inline TrainingState small_state(int64_t step) {
  return {.step = step,
          .samples = step * 32,
          .updates = {{"embed", step}, {"norm", step - 1}},
          .schedule = {{"learning_rate", 1e-5}, {"odd", 0.1}},
          .random = {{"engine", "0123abcd"}},
          .versions = {{"oom", "0.1.0"}},
          .config = "[model]\npath = \"gr\xC3\xBC\xC3\x9F\"\n"};
}

inline CheckpointWriteOptions small_options() { return {.file_bytes = 160, .block_bytes = 64, .threads = 1, .on_phase = {}}; }

inline std::filesystem::path write_small(const std::filesystem::path& folder, int64_t step, CheckpointWriteOptions options = small_options()) {
  CheckpointWriter writer(folder, step, kSmallTensors, std::move(options));
  writer.write_tensors(small_source(step));
  writer.write_text("config.json", "{\"model_type\": \"x\"}");
  return writer.commit(small_state(step));
}

/// Returns whether every value, read in ranges of every kind, is what was written.
inline bool holds_small(const CheckpointReader& reader, int64_t step) {
  if (!(reader.state() == small_state(step)) || reader.text("config.json") != "{\"model_type\": \"x\"}") return false;
  if (reader.tensors().size() != kSmallTensors.size()) return false;
  for (const TensorInfo& tensor : kSmallTensors) {
    const TensorInfo* found = reader.find(tensor.name);
    if (found == nullptr || found->shape != tensor.shape) return false;
    for (const StateStream stream : kStateStreams) {
      const int64_t elements = tensor.elements();
      for (int64_t begin = 0; begin <= elements; ++begin) {
        std::vector<float> values(static_cast<size_t>(begin % 3 == 0 ? elements - begin : std::min<int64_t>(elements - begin, 1 + begin % 20)));
        reader.read(tensor.name, stream, begin, values);
        for (size_t i = 0; i < values.size(); ++i)
          if (values[i] != small_value(tensor, stream, begin + static_cast<int64_t>(i), step)) return false;
      }
    }
  }
  return true;
}

}  // namespace oom::checkpoint
