/// A model's weights between Hugging Face files and the training state, and their random initialisation.
#pragma once

#include <filesystem>
#include <functional>
#include <span>

#include "checkpoint/hf_directory.h"
#include "checkpoint/safetensors_header.h"
#include "memory/worker_pool.h"
#include "oom/model.h"
#include "runtime/state_store.h"

namespace oom::runtime {

/// A parameter and the layout in which the files hold it.
struct ChosenLayout {
  int parameter = 0;
  FileLayout pieces;
};
/// Matches a description with the tensors of a folder. Throws one FileError with every missing, misshapen, wrongly typed and unexpected tensor.
std::vector<ChosenLayout> match_layouts(const checkpoint::HfDirectory& files, const ModelDescription& model);

/// Streams masters from files into the state, from several threads, a few MiB at a time. Values that are not finite are a FileError.
void load_model_weights(const checkpoint::HfDirectory& files, const ModelDescription& model, StateStore& state);

/// Writes the masters of `weights = "random"`.
void initialise_random(const ModelDescription& model, uint64_t seed, StateStore& state, std::span<memory::WorkerPool* const> pools);

/// Gives elements [first, first + out.size()) of a parameter's master.
using MasterSource = std::function<void(int parameter, int64_t first, std::span<float> out)>;
/// Writes a Hugging Face folder: each parameter in its first layout, config.json with its dtype set, and the tensors of `original` (null: none)
/// that are carried through.
void write_hf_model(const std::filesystem::path& folder, const ModelDescription& model, const MasterSource& source, checkpoint::Dtype dtype, const checkpoint::HfDirectory* original);

}  // namespace oom::runtime
