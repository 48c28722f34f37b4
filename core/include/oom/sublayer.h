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
/// kTokens, kSequence: the call sees and returns those rows. kHeadGroup: it returns an FP32 contribution [T, H] without the residual.
struct Slice {
  Axis axis = Axis::kWhole;
  int64_t begin = 0;
  int64_t end = 0;
};

/// Tensors an operator puts aside for its own backward, in an order of its own.
struct Saved {
  std::vector<at::Tensor> tensors;
};
/// Attention results kept from the forward so that replay need not attend again: O [T, heads, head_dim] and LSE [B, heads, S] FP32.
struct Keep {
  at::Tensor output;
  at::Tensor log_sum_exp;
};
/// What passes between slices along a sequential axis (recurrent state, convolution context) and back.
struct CarriedState {
  std::vector<at::Tensor> tensors;
};

enum class Pass { kForward, kReplay, kReplayKept, kBackward };

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

struct MixerCall {
  const LayerWeights& weights;
  LayerGradients* gradients = nullptr;  ///< backward only
  const SequenceInfo& sequence;         ///< of the whole that the slice is cut from, the same object for every slice; x holds the slice's rows alone
  Slice slice;                          ///< kSequence: rows [begin, end) of each sequence, sequence by sequence; kBatch: sequences [begin, end)
  CarriedState* state = nullptr;        ///< kSequence: in what the slice before handed on (backward: the slice behind; empty: zeros), out its own
};

class OOM_API Mixer {
 public:
  virtual ~Mixer();
  /// Axes this operator may be cut along; always contains kWhole.
  virtual std::vector<CutAxis> axes() const = 0;
  /// Returns y [T, H]. Fills `keep` when given.
  virtual at::Tensor forward(const at::Tensor& x, const MixerCall& call, Keep* keep) const = 0;
  /// Returns y again, bit for bit, and fills `saved`. Reads O and LSE from `keep` instead of attending when given.
  virtual at::Tensor replay(const at::Tensor& x, const MixerCall& call, const Keep* keep, Saved& saved) const = 0;
  /// Returns dx [T, H] and writes the parameters' gradients; empties `saved`.
  virtual at::Tensor backward(const at::Tensor& dy, const at::Tensor& x, Saved& saved, const MixerCall& call) const = 0;
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
  /// Cost of front and back together; the routed experts are counted by their strategy.
  virtual SublayerCost cost(Pass pass, int64_t tokens, int64_t element_bytes) const = 0;
};

}  // namespace abi_1
}  // namespace oom
