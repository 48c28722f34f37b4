#include "runtime/model_files.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "base/bfloat16.h"
#include "base/text.h"
#include "checkpoint/hf_writer.h"
#include "checkpoint/tensor_files.h"
#include "oom/log.h"
#include "runtime/random_weights.h"

namespace oom::runtime {
namespace {

constexpr int64_t kPieceElements = 1 << 20;
constexpr int64_t kShareElements = 16 << 20;  // of a tensor that one thread reads: the experts of a layer may be one tensor
constexpr int kThreads = 8;  // a fast disk wants several requests at once, and converting takes longer than reading
constexpr size_t kNamedFaults = 20;

bool is_float(checkpoint::Dtype dtype) { return dtype == checkpoint::Dtype::kBF16 || dtype == checkpoint::Dtype::kF32 || dtype == checkpoint::Dtype::kF16; }

int64_t piece_elements(const FilePiece& piece) {
  int64_t count = 1;
  for (const int64_t extent : piece.shape) count *= extent;
  return count;
}

using HasTensor = std::function<bool(const std::string&)>;

// The layout of which most pieces are there; ties go to the earlier one.
const FileLayout& nearest_layout(const std::vector<FileLayout>& layouts, const HasTensor& has) {
  const FileLayout* best = &layouts.front();
  double best_share = -1;
  for (const FileLayout& layout : layouts) {
    const auto present = std::count_if(layout.begin(), layout.end(), [&](const FilePiece& piece) { return has(piece.tensor); });
    const double share = static_cast<double>(present) / static_cast<double>(layout.size());
    if (share > best_share) {
      best_share = share;
      best = &layout;
    }
  }
  return *best;
}

std::string in_file(const checkpoint::HfDirectory& files, const std::string& tensor) { return cat(files.file_of(tensor).filename().string(), ": ", tensor); }

// What is wrong with a folder's weights, by kind: a kind with thousands of faults hides no other.
struct WeightFaults {
  std::vector<std::string> missing, misshapen, wrongly_typed, unreadable, unexpected;

  size_t count() const { return missing.size() + misshapen.size() + wrongly_typed.size() + unreadable.size() + unexpected.size(); }
  void raise_if_any(const checkpoint::HfDirectory& files) const {
    if (count() == 0) return;
    std::string text = cat(files.folder().string(), ": the weights do not fit config.json (", count(), count() == 1 ? " fault):" : " faults):");
    for (const std::vector<std::string>* kind : {&missing, &misshapen, &wrongly_typed, &unreadable, &unexpected}) {
      for (size_t i = 0; i < std::min(kind->size(), kNamedFaults); ++i) text += "\n  " + (*kind)[i];
      if (kind->size() > kNamedFaults) text += cat("\n  and ", kind->size() - kNamedFaults, " more of this kind");
    }
    throw FileError(text);
  }
};

bool fits(const checkpoint::TensorPlace* tensor, const FilePiece& piece) { return tensor && tensor->shape == piece.shape && is_float(tensor->dtype); }

std::vector<ChosenLayout> choose_layouts(const checkpoint::HfDirectory& files, const ModelDescription& model, WeightFaults& faults) {
  std::vector<ChosenLayout> chosen;
  std::set<std::string> claimed;
  for (int p = 0; p < static_cast<int>(model.parameters.size()); ++p) {
    const std::vector<FileLayout> layouts = model.file_layouts(model.parameters[p]);
    const FileLayout& layout = nearest_layout(layouts, [&](const std::string& name) { return files.find(name) != nullptr; });
    for (const FilePiece& piece : layout) {
      const checkpoint::TensorPlace* tensor = files.find(piece.tensor);
      if (!tensor) {
        faults.missing.push_back(cat("missing: ", piece.tensor, " ", checkpoint::shape_text(piece.shape), layout.size() > 1 ? cat(" (part of ", model.parameters[p].name, ")") : ""));
        continue;
      }
      claimed.insert(piece.tensor);
      if (tensor->shape != piece.shape) {
        faults.misshapen.push_back(cat("misshapen: ", in_file(files, piece.tensor), " is ", checkpoint::shape_text(tensor->shape), ", config.json makes it ", checkpoint::shape_text(piece.shape)));
      }
      if (!is_float(tensor->dtype)) {
        faults.wrongly_typed.push_back(cat("wrong type: ", in_file(files, piece.tensor), " is ", checkpoint::dtype_name(tensor->dtype), "; BF16, F16 and F32 are read"));
      }
    }
    chosen.push_back({p, layout});
  }
  for (const checkpoint::TensorPlace* tensor : files.tensors()) {
    if (claimed.count(tensor->name) || model.carried_through(tensor->name)) continue;
    faults.unexpected.push_back(cat("unexpected: ", in_file(files, tensor->name), " ", checkpoint::shape_text(tensor->shape), " belongs to no parameter of this model"));
  }
  return chosen;
}

}  // namespace

std::vector<ChosenLayout> match_layouts(const checkpoint::HfDirectory& files, const ModelDescription& model) {
  WeightFaults faults;
  std::vector<ChosenLayout> chosen = choose_layouts(files, model, faults);
  faults.raise_if_any(files);
  return chosen;
}

void load_model_weights(const checkpoint::HfDirectory& files, const ModelDescription& model, StateStore& state) {
  struct Work {
    int parameter;
    const FilePiece* piece;
    int64_t first, end;  // elements of the piece
  };
  WeightFaults faults;
  const std::vector<ChosenLayout> chosen = choose_layouts(files, model, faults);
  // What fits is read even where something else does not, so that one message names every fault.
  std::vector<Work> work;
  for (const ChosenLayout& layout : chosen) {
    for (const FilePiece& piece : layout.pieces) {
      if (!fits(files.find(piece.tensor), piece)) continue;
      const int64_t total = piece_elements(piece);
      for (int64_t first = 0; first < total; first += kShareElements) work.push_back({layout.parameter, &piece, first, std::min(first + kShareElements, total)});
    }
  }
  const std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  std::mutex mutex;
  std::map<std::pair<std::string, int64_t>, std::string> unreadable;  // by tensor and share
  checkpoint::for_each_parallel(work.size(), kThreads, [&](size_t i) {
    const auto [parameter, piece, first, end] = work[i];
    std::vector<float> values(static_cast<size_t>(std::min(end - first, kPieceElements)));
    try {
      for (int64_t at = first; at < end; at += kPieceElements) {
        const std::span<float> part(values.data(), static_cast<size_t>(std::min(kPieceElements, end - at)));
        files.read_float(piece->tensor, at, part);
        state.write(parameter, optim::StatePart::kMaster, piece->offset + at, part);
      }
    } catch (const FileError& error) {
      const std::lock_guard lock(mutex);
      unreadable[{piece->tensor, first}] = error.what();
    }
  });
  std::string last;
  for (const auto& [place, what] : unreadable) {
    if (place.first != last) faults.unreadable.push_back(what);
    last = place.first;
  }
  faults.raise_if_any(files);
  int64_t bytes = 0;
  for (const Work& each : work) bytes += (each.end - each.first) * checkpoint::dtype_bytes(files.get(each.piece->tensor).dtype);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  log_info("weights: ", base::format_bytes(bytes), " of ", files.folder().string(), " in ", seconds, " s, ", base::format_bytes(static_cast<int64_t>(static_cast<double>(bytes) / std::max(seconds, 1e-9))), "/s");
}

void initialise_random(const ModelDescription& model, uint64_t seed, StateStore& state, std::span<memory::WorkerPool* const> pools) {
  // Work items over all parameters, dealt to all pools' threads; any element is computed on its own.
  struct Work {
    int parameter;
    int64_t first, count;
  };
  std::vector<Work> work;
  for (int p = 0; p < static_cast<int>(model.parameters.size()); ++p) {
    const int64_t total = model.parameters[p].elements();
    for (int64_t first = 0; first < total; first += kPieceElements) work.push_back({p, first, std::min(kPieceElements, total - first)});
  }
  int threads = 0;
  for (const memory::WorkerPool* pool : pools) threads += pool->size();
  checkpoint::for_each_parallel(work.size(), threads, [&](size_t i) {
    thread_local std::vector<float> values;
    values.resize(static_cast<size_t>(work[i].count));
    random_weights(model.parameters[work[i].parameter], seed, work[i].first, values);
    state.write(work[i].parameter, optim::StatePart::kMaster, work[i].first, values);
  });
}

void write_hf_model(const std::filesystem::path& folder, const ModelDescription& model, const MasterSource& source, checkpoint::Dtype dtype, const checkpoint::SourceTensors& came_in,
                    const checkpoint::HfDirectory* original) {
  struct Origin {
    int parameter = -1;  // -1: carried through
    int64_t first = 0;
  };
  // A model that came in BF16 but for a few FP32 tensors goes out so: the few are those that rounding hurts.
  const bool keeps_fp32 = dtype == checkpoint::Dtype::kBF16 && came_in.main_dtype() == checkpoint::Dtype::kBF16;
  std::vector<checkpoint::TensorInfo> tensors;
  std::map<std::string, Origin> origins;
  for (int p = 0; p < static_cast<int>(model.parameters.size()); ++p) {
    const std::vector<FileLayout> layouts = model.file_layouts(model.parameters[p]);
    for (const FilePiece& piece : nearest_layout(layouts, [&](const std::string& name) { return came_in.find(name) != nullptr; })) {
      const checkpoint::TensorInfo* before = came_in.find(piece.tensor);
      tensors.push_back({piece.tensor, keeps_fp32 && before && before->dtype == checkpoint::Dtype::kF32 ? checkpoint::Dtype::kF32 : dtype, piece.shape});
      origins[piece.tensor] = {p, piece.offset};
    }
  }
  for (const checkpoint::TensorInfo& tensor : came_in.tensors()) {
    if (origins.contains(tensor.name) || !model.carried_through(tensor.name)) continue;
    const checkpoint::TensorPlace* there = original ? original->find(tensor.name) : nullptr;
    if (!there || there->shape != tensor.shape || there->dtype != tensor.dtype) {
      throw FileError(cat(original ? original->folder().string() : "the model's own folder", ": tensor ", tensor.name, " ", checkpoint::shape_text(tensor.shape),
                          " is not trained and is carried through from there, but it is gone or another. Put the model's files back"));
    }
    tensors.push_back(tensor);
    origins[tensor.name] = {};
  }
  nlohmann::ordered_json config = nlohmann::ordered_json::parse(model.config_json);
  const char* name = dtype == checkpoint::Dtype::kF32 ? "float32" : "bfloat16";
  config[config.contains("dtype") ? "dtype" : "torch_dtype"] = name;

  checkpoint::write_hf_directory(folder, config.dump(2) + "\n", tensors, [&](const checkpoint::TensorInfo& tensor, const checkpoint::ByteSink& sink) {
    const Origin origin = origins.at(tensor.name);
    if (origin.parameter < 0) {
      std::vector<std::byte> bytes(4 << 20);
      for (int64_t at = 0; at < tensor.bytes(); at += static_cast<int64_t>(bytes.size())) {
        const std::span<std::byte> part(bytes.data(), static_cast<size_t>(std::min<int64_t>(static_cast<int64_t>(bytes.size()), tensor.bytes() - at)));
        original->read_bytes(tensor.name, at, part);
        sink(part);
      }
      return;
    }
    const int64_t total = tensor.elements();
    std::vector<float> values(static_cast<size_t>(std::min(total, kPieceElements)));
    std::vector<uint16_t> rounded(values.size());
    for (int64_t at = 0; at < total; at += kPieceElements) {
      const std::span<float> part(values.data(), static_cast<size_t>(std::min(kPieceElements, total - at)));
      source(origin.parameter, origin.first + at, part);
      if (tensor.dtype == checkpoint::Dtype::kF32) {
        sink(std::as_bytes(part));
        continue;
      }
      std::transform(part.begin(), part.end(), rounded.begin(), base::to_bfloat16);
      sink(std::as_bytes(std::span(rounded.data(), part.size())));
    }
  });
}

}  // namespace oom::runtime
