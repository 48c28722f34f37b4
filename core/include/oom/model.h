/// A model as data: its layers, its parameter tensors, where each tensor lies in Hugging Face files, and its initial values.
/// A ModelAdapter fills a ModelDescription from a config.json; everything after that (layout, loading, planning, checkpoints,
/// export) reads the description and never asks which family it is.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "oom/error.h"

namespace oom {
inline namespace abi_1 {

/// What a parameter is for: decides how it is delivered, who owns it, and the line of `oom inspect` it is counted in.
enum class ParameterRole { kEmbedding, kHead, kNorm, kAttention, kRecurrence, kRouter, kExpert, kSharedExpert, kSharedGate, kDenseMlp, kBuffer };
OOM_API const char* role_name(ParameterRole role);

/// Initial values of `weights = "random"`, as the reference implementation initialises them.
struct Initialisation {
  enum class Kind { kNormal, kConstant, kUniformLog } kind = Kind::kNormal;
  double value = 0.02;  ///< standard deviation | the constant | unused (kUniformLog: log of a uniform value in (0.01, 16))
};

/// One canonical parameter tensor: the layout that `transformers` keeps in memory (experts fused: gate_up_proj [E, 2I, H],
/// down_proj [E, H, I]).
struct ParameterSpec {
  std::string name;               ///< "model.layers.3.mlp.experts.gate_up_proj"
  std::vector<int64_t> shape;
  ParameterRole role = ParameterRole::kAttention;
  int layer = -1;                 ///< decoder layer; kEmbeddingLayer or kHeadLayer for the others
  Initialisation init;
  bool trained = true;            ///< false: a buffer that is loaded, used and exported, never updated

  int64_t elements() const;
  int64_t bytes(int64_t element_bytes) const { return elements() * element_bytes; }
};
inline constexpr int kEmbeddingLayer = -1;
inline constexpr int kHeadLayer = -2;

/// A tensor of a file that holds a contiguous piece of a canonical parameter.
struct FilePiece {
  std::string tensor;             ///< name in the file
  int64_t offset = 0;             ///< first element of the canonical parameter that it holds
  std::vector<int64_t> shape;     ///< of the file's tensor
};
/// One way of writing a parameter to files: the pieces, which together cover it once.
using FileLayout = std::vector<FilePiece>;

struct LayerSpec {
  std::string mixer;              ///< "full_attention", "sliding_attention", "linear_attention"
  std::string feed_forward;       ///< "moe", "dense"
  bool routed() const { return feed_forward == "moe"; }
};

struct RoutedExperts {
  int64_t experts = 0;            ///< E; 0 = no routed layer
  int64_t top_k = 0;              ///< K
  int64_t width = 0;              ///< I: rows of gate, of up, columns of down
  std::string activation = "silu";  ///< silu | gelu_tanh
};

struct ModelDescription {
  std::string family;             ///< the adapter's name
  int64_t hidden = 0;
  int64_t vocabulary = 0;
  std::vector<LayerSpec> layers;
  RoutedExperts routed;
  bool tied_embeddings = false;   ///< the head reads the embedding's tensor
  double embedding_scale = 1.0;   ///< multiplies looked-up rows, rounded to the compute dtype first
  int64_t padding_token = -1;     ///< its look-ups give the table no gradient; -1: none
  double logit_softcap = 0.0;     ///< c > 0: logits = c tanh(logits / c)
  double router_aux_loss = 0.0;   ///< coefficient the model's own config asks for; 0 = none
  int64_t max_positions = 0;
  std::vector<ParameterSpec> parameters;  ///< every tensor of the text model, in file order
  std::string config_json;        ///< as read; written unchanged on export
  double yarn_factor = 1.0;       ///< of ModelOptions: what the operators are built with

  /// Every layout of `parameter` seen in published files; export writes the one that the model came in, else the first.
  std::function<std::vector<FileLayout>(const ParameterSpec&)> file_layouts;
  /// Tensors that belong to parts that are not trained (vision, multi-token prediction): carried through export unchanged.
  std::function<bool(const std::string&)> carried_through;

  int64_t total_parameters() const;
  /// Parameters that take part in one token's forward, embedding table included.
  int64_t active_parameters() const;
};

}  // namespace abi_1
}  // namespace oom
