/// The two halves of a decoder layer as operators with explicit forward, replay and backward, which strategies cut into slices.
///
/// A decoder layer is  y = x + mix(norm(x)),  z = y + feed_forward(norm(y))  (with whatever norms and scales the family adds);
/// a Mixer computes y from x, a FeedForward computes z from y in two parts around the routed experts, which belong to an
/// ExpertStrategy. No autograd: what backward needs is put into a Saved by replay and consumed by backward.
///
/// Threads and streams: every call is made by its rank's compute lane, under InferenceMode, on that lane's current stream.
/// Activations are [T, H], T = B * S tokens, sequence by sequence, in the compute dtype (BF16 or FP32).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <span>
#include <vector>

#include "oom/error.h"
#include "oom/ops/gradient_sink.h"
#include "oom/ops/router.h"

namespace oom {
inline namespace abi_1 {

using ops::GradientSink;

/// A layer's working weights (compute dtype) and gradient sinks, by position in the layer's parameter list; a parameter that is
/// not delivered here (an expert bank owned elsewhere) is an undefined tensor.
using LayerWeights = std::vector<at::Tensor>;
using LayerGradients = std::vector<GradientSink>;

/// The sequences of one rank's micro-step.
struct SequenceInfo {
  int64_t batch = 0;            ///< B
  int64_t length = 0;           ///< S
  at::Tensor positions;         ///< int32 [T], position of each token in its document
  at::Tensor document_starts;   ///< int32 [D + 1] token offsets of documents on the device; undefined: each sequence is one document
  std::span<const int32_t> host_document_starts;  ///< the same values, for the calling thread
  int64_t longest_document = 0; ///< tokens; host side
};

enum class Axis { kWhole, kBatch, kTokens, kSequence, kHeadGroup };

/// An axis along which an operator's work may be cut, and what the cut costs.
struct CutAxis {
  Axis axis = Axis::kWhole;
  int64_t extent = 0;             ///< slices count in units of this axis: key/value groups x heads, tokens
  int64_t multiple = 1;           ///< slice borders are multiples of this, the last excepted
  int64_t carried_bytes = 0;      ///< handed from slice to slice, a sequence (0: slices are independent)
  bool reversed_backward = false; ///< backward walks the slices in reverse and hands a gradient back
};

/// A part of an operator's work; kWhole ignores the range.
/// kBatch: sequences; kTokens: tokens; kSequence: tokens of each sequence, whose rows alone the call sees and returns; kHeadGroup: query heads.
struct Slice {
  Axis axis = Axis::kWhole;
  int64_t begin = 0;
  int64_t end = 0;
};

/// Tensors an operator puts aside for its own backward, in an order of its own.
struct Saved {
  std::vector<at::Tensor> tensors;
};
/// Results of attention over a call's tokens, from which its output can be made again without attending: memory of the caller's, which operators
/// fill or read, perhaps a part of a larger tensor.
struct Keep {
  at::Tensor output;       ///< O [T, heads * head_dim] in the compute type; rows may be strided
  at::Tensor log_sum_exp;  ///< FP32 [B, heads, S]; may be strided
};
/// Of all heads; none: the mixer has no results to keep.
struct KeepShape {
  int64_t heads = 0;
  int64_t head_dim = 0;
};
/// What passes between slices along a sequential axis (recurrent state, context of convolution or window) and back. Operators replace the tensors, never write into
/// them: the states between slices are held side by side. Empty: the beginning (forward), or nothing comes back (backward).
struct CarriedState {
  std::vector<at::Tensor> tensors;
};

/// What a call is for. From kAttend on: the calls of AttentionParts.
enum class Pass { kForward, kReplay, kReplayKept, kBackward, kAttend, kProject, kAttendBackward, kEnterBackward };

/// What a call costs, for the planner: floating-point operations by kind and bytes moved in device memory.
struct SublayerCost {
  double gemm_flops = 0;
  double attention_flops = 0;
  double other_flops = 0;
  double device_bytes = 0;
  int64_t workspace_bytes = 0;  ///< most that is allocated at once inside the call, results and saved tensors left out
  int64_t saved_bytes = 0;      ///< put into Saved by replay
  int64_t kept_bytes = 0;       ///< size of Keep
};

/// `sequence` describes the whole sequences that the call is about, also when x holds the rows of a kSequence slice alone: then rows [begin, end) of each,
/// sequence by sequence.
struct MixerCall {
  const LayerWeights& weights;
  LayerGradients* gradients = nullptr;  ///< backward only
  const SequenceInfo& sequence;
  Slice slice;
  /// Sequential axes. Forward and replay: in the state where the slice begins, out that where it ends. Backward: in the gradient of the state where it
  /// ends, out that of the state where it begins.
  CarriedState* state = nullptr;
  bool wants_output = true;  ///< false: the caller does not read what replay returns
};

/// Attention in parts, so that no more than a few heads' queries, keys and values exist at once. Forward: attend for each head group, then project.
/// Backward: attend_backward for each head group in the same order, then enter_backward. Groups lie within one key/value head or cover several whole ones;
/// every query head is in one group. `project`, `project_backward` and `enter_backward` work row by row: they may be given any of the rows.
class OOM_API AttentionParts {
 public:
  virtual ~AttentionParts();
  /// Query heads that share a key/value head.
  virtual int64_t heads_per_key() const = 0;
  /// Fills the slice's heads of `results` (of whole width) from the input x [T, H] of whole sequences.
  virtual void attend(const at::Tensor& x, const MixerCall& call, const Keep& results) const = 0;
  /// Returns the rows y of the mixer, given those of its input and of O; the bits of an uncut forward.
  virtual at::Tensor project(const at::Tensor& x, const at::Tensor& output, const MixerCall& call) const = 0;
  /// True when what is between Wo and the residual sum (a norm) has a backward of its own, project_backward.
  virtual bool transforms_projection() const { return false; }
  /// Returns the gradient of Wo's product [rows, H] for that of y.
  virtual at::Tensor project_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& output, const MixerCall& call) const;
  /// Adds the slice's share to `dnormed`, FP32 [T, H]: the gradient of the normed input. `dprojected`: the gradient of Wo's product. Accumulates the
  /// parameters' gradients: sinks must be FP32 and accumulate. `key_sums` goes from group to group: FP32 sums of dK and dV of a key/value head, while
  /// some of its query heads are missing.
  virtual void attend_backward(const at::Tensor& dprojected, const at::Tensor& x, const Keep& results, const MixerCall& call, CarriedState& key_sums, const at::Tensor& dnormed) const = 0;
  /// Returns the rows dx = dy + the input norm's backward of `dnormed`, FP32 [rows, H].
  virtual at::Tensor enter_backward(const at::Tensor& dnormed, const at::Tensor& dy, const at::Tensor& x, const MixerCall& call) const = 0;
};

class OOM_API Mixer {
 public:
  virtual ~Mixer();
  /// Axes this operator may be cut along; always contains kWhole.
  virtual std::vector<CutAxis> axes() const = 0;
  virtual KeepShape keep_shape() const { return {}; }
  /// Not null for mixers that may be cut along kHeadGroup or have results to keep.
  virtual const AttentionParts* parts() const { return nullptr; }
  /// Returns y [T, H]. Fills `keep` when given.
  virtual at::Tensor forward(const at::Tensor& x, const MixerCall& call, Keep* keep) const = 0;
  /// Returns y again, bit for bit, and fills `saved`. Reads O and LSE from `keep` instead of attending when given.
  virtual at::Tensor replay(const at::Tensor& x, const MixerCall& call, const Keep* keep, Saved& saved) const = 0;
  /// Returns dx [T, H] and writes the parameters' gradients; empties `saved`.
  virtual at::Tensor backward(const at::Tensor& dy, const at::Tensor& x, Saved& saved, const MixerCall& call) const = 0;
  /// Of one call over `batch` sequences of `length` tokens, or over the slice of them.
  virtual SublayerCost cost(Pass pass, int64_t batch, int64_t length, int64_t element_bytes, const Slice& slice) const = 0;
  /// True when calls heed SequenceInfo::document_starts. Where one mixer does not, `data.documents = "isolated"` is refused.
  virtual bool isolates_documents() const { return false; }
};

/// The routing decisions of one layer for a rank's tokens: made once, in the forward, and reused by replay and backward.
using ops::Routing;

/// What the front of a feed-forward hands on.
struct FeedForwardFront {
  at::Tensor expert_input;  ///< [T, H] rows for the routed experts; undefined for a dense layer
  at::Tensor side;          ///< [T, H] result of the branch beside the experts (shared expert, dense MLP); undefined: none
};

struct FeedForwardCall {
  const LayerWeights& weights;
  LayerGradients* gradients = nullptr;
  /// Auxiliary loss: FP32 [E]: c[e] adds sum_e c[e] p[n, e] over tokens n to the loss (oom/ops/router.h). Undefined: no auxiliary loss.
  at::Tensor probability_gradient;
  /// Auxiliary loss statistics, to which a front that decides adds its tokens. Undefined tensors: not wanted.
  ops::RoutingStatistics statistics;
};

/// Which of the rows [T, H] that a feed-forward's halves hand on are memory of their own: a tensor counts once. The defaults are the most there can be.
struct HandedOn {
  bool side = true;              ///< there is a FeedForwardFront::side
  bool saves_input = false;      ///< a front that saves keeps the experts' input in Saved anyhow
  bool saves_side = false;       ///< likewise the side branch's result
  int saved_by_back = 0;         ///< rows that `back` adds to Saved and back_backward takes out again, where replays_back(); saved_bytes leaves them out
  bool passes_gradient = false;  ///< back_backward returns dz itself, as all three of its results
};

class OOM_API FeedForward {
 public:
  virtual ~FeedForward();
  virtual bool routed() const = 0;
  /// True when back_backward needs what `back` saved, so that replay must run the experts to their end; false: replay stops at the activation.
  virtual bool replays_back() const = 0;
  /// Norms, routes (decides when `routing.indices` is undefined, reuses it otherwise) and computes the branch beside the experts.
  /// Fills `saved` when given.
  virtual FeedForwardFront front(const at::Tensor& y, const FeedForwardCall& call, Routing& routing, Saved* saved) const = 0;
  /// Returns z = y + combination of `routed` [T, H] (undefined for a dense layer) and front.side.
  virtual at::Tensor back(const at::Tensor& y, const at::Tensor& routed, const FeedForwardFront& front, const FeedForwardCall& call, Saved* saved) const = 0;
  /// Returns the gradient of `routed` [T, H]; `dside` receives that of front.side, `dy` the part that reaches y directly.
  virtual at::Tensor back_backward(const at::Tensor& dz, Saved& saved, const FeedForwardCall& call, at::Tensor& dside, at::Tensor& dy) const = 0;
  /// Returns the whole gradient of y, given the experts' gradient of expert_input [T, H] and of the routing weights FP32 [T, K].
  virtual at::Tensor front_backward(const at::Tensor& dexpert_input, const at::Tensor& drouting_weights, const at::Tensor& dside, const at::Tensor& dy,
                                    const at::Tensor& y, const Routing& routing, Saved& saved, const FeedForwardCall& call) const = 0;
  /// Cost of front and back together; the routed experts are counted by their strategy. Workspace: the front's, or front_backward's.
  virtual SublayerCost cost(Pass pass, int64_t tokens, int64_t element_bytes) const = 0;
  virtual HandedOn hands_on() const { return {}; }
};

}  // namespace abi_1
}  // namespace oom
