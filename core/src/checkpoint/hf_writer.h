/// Writes a model in Hugging Face's form: config.json, safetensors files of a bounded size, and their index.
///
/// Files get their final names only when all are complete, config.json last: an interrupted export is no model to any reader.
#pragma once

#include <functional>

#include "checkpoint/safetensors_header.h"

namespace oom::checkpoint {

struct HfWriteOptions {
  int64_t shard_bytes = int64_t{5} << 30;
  int threads = 1;  ///< files written at once
};

/// Takes the next bytes of a tensor.
using ByteSink = std::function<void(std::span<const std::byte>)>;
/// Gives all bytes of `tensor` to `sink`, in pieces of any size. Called once per tensor, from several threads at once when
/// HfWriteOptions::threads is above 1.
using ByteSource = std::function<void(const TensorInfo& tensor, const ByteSink& sink)>;

/// Writes `tensors` in the order given into `folder`, which is made when absent and must hold no model. Throws FileError.
void write_hf_directory(const std::filesystem::path& folder, const std::string& config_text, std::span<const TensorInfo> tensors,
                        const ByteSource& source, const HfWriteOptions& options = {});

}  // namespace oom::checkpoint
