/// A model's weights between Hugging Face files and the training state, and their random initialisation.
#pragma once

#include <filesystem>
#include <functional>
#include <span>

#include "checkpoint/hf_directory.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/source_tensors.h"
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

/// Streams masters from files into the state, from several threads, a few MiB at a time: 5 MiB a thread is all the memory it takes. Throws one
/// FileError with what match_layouts finds and every tensor that holds a value which is not finite.
void load_model_weights(const checkpoint::HfDirectory& files, const ModelDescription& model, StateStore& state);

/// Writes the masters of `weights = "random"`.
void initialise_random(const ModelDescription& model, uint64_t seed, StateStore& state, std::span<memory::WorkerPool* const> pools);

/// Gives elements [first, first + out.size()) of a parameter's master.
using MasterSource = std::function<void(int parameter, int64_t first, std::span<float> out)>;
/// Writes a Hugging Face folder: each parameter in the layout in which the model came in (`came_in`; empty: the family's first layout), config.json
/// with its dtype set, and the tensors that are carried through, byte for byte, from `original` (null: gone). With dtype BF16, tensors that were FP32
/// in a model that came in BF16 stay FP32. Throws FileError when a tensor to be carried through is not there any more.
void write_hf_model(const std::filesystem::path& folder, const ModelDescription& model, const MasterSource& source, checkpoint::Dtype dtype, const checkpoint::SourceTensors& came_in,
                    const checkpoint::HfDirectory* original);

}  // namespace oom::runtime
