/// What strategies emit a step with. The core owns the stream, reduction and update of parameters (`deliver`, `retire`), the embedding
/// and the head; an ActivationStrategy conducts (which layer, which slice, what is stored, what is replayed); an ExpertStrategy emits
/// the routed experts of a layer. Everything is emitted for all ranks at once, in the logical sequential order of oom/program.h.
///
/// One step, as an ActivationStrategy emits it:
///   begin_step                       pending updates of deferred layers, interleaved with the forward by `deliver`
///   emit_embedding(x0)
///   each layer: deliver, mixer forward, feed-forward forward
///   emit_head(x)                     loss and its gradient at once (linear cross entropy); retires the head
///   each layer in reverse: deliver, replay, backward, retire
///   emit_embedding_backward(dx0)
///   end_step                         losses, gradient norm, clipping coefficient
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "oom/model.h"
#include "oom/parameter_unit.h"
#include "oom/plan.h"
#include "oom/program.h"
#include "oom/step_memory.h"
#include "oom/sublayer.h"

namespace oom {
inline namespace abi_1 {

/// One buffer for each rank.
using RankBuffers = std::vector<BufferId>;

/// [rows, H] in the compute type on every rank: tokens [begin, begin + rows) of each rank's own.
struct Activation {
  RankBuffers buffers;
  int64_t begin = 0;
  int64_t rows = 0;
};

/// What attention gives (Keep) for some sequences of every rank, in slots or in persistent memory of StepEmitter::keep_bytes.
struct AttentionResults {
  RankBuffers buffers;
  int64_t first_sequence = 0;
  int64_t sequences = 0;
  bool empty() const { return buffers.empty(); }
};

/// Part of a mixer's work over whole sequences of a rank: one stage a rank. `slice` is kWhole (all heads and tokens of these sequences), kHeadGroup, or
/// kSequence (then there is one sequence).
struct MixerPart {
  int64_t first_sequence = 0;
  int64_t sequences = 0;
  Slice slice;
  int index = 0;  ///< Stage::part
};

/// Tokens [begin, begin + tokens) of every rank: a part of a feed-forward's work. `first`, `last`: in the order of emission.
struct TokenPart {
  int64_t begin = 0;
  int64_t tokens = 0;
  int index = 0;  ///< Stage::part
  bool first = true;
  bool last = true;
};

/// What a pass over a part of a feed-forward leaves for the backward of that part.
struct FeedForwardRecord {
  RankBuffers routing, front, saved, saved_by_back, experts;
};

/// A unit in a window of every rank that it was delivered to: what compute stages declare as reads, and where its tensors are.
struct Delivery {
  UnitId unit = -1;
  int window = 0;
  /// reads[rank]: the window's buffers.
  std::vector<std::vector<BufferId>> reads;
};

/// A unit's gradient buffers on every rank that computes them.
struct GradientTarget {
  UnitId unit = -1;
  std::vector<std::vector<BufferId>> writes;  ///< by rank
  bool accumulate = false;                    ///< stages add to what is there, which emit_zero has made 0
};

class OOM_API StepEmitter {
 public:
  virtual ~StepEmitter();

  virtual ProgramBuilder& program() = 0;
  virtual StepMemory& memory() = 0;
  virtual const ModelDescription& model() const = 0;
  virtual const Plan& plan() const = 0;
  int ranks() const { return plan().ranks; }
  at::ScalarType compute_type() const;
  int64_t boundary_bytes() const;  ///< of one rank: tokens x hidden x element

  // Buffers.
  /// A transient activation on each rank's GPU.
  virtual RankBuffers add_activation(const std::string& name, int64_t bytes, BufferClass buffer_class = BufferClass::kWorkspace) = 0;
  /// The same for [rows, H] of the compute type, or of FP32.
  Activation add_rows(const std::string& name, int64_t begin, int64_t rows, BufferClass buffer_class = BufferClass::kWorkspace);
  Activation add_sums(const std::string& name, int64_t begin, int64_t rows);
  /// All tokens of the ranks, in buffers that are there.
  Activation all_tokens(RankBuffers buffers) const { return {std::move(buffers), 0, plan().tokens_per_rank()}; }
  /// A persistent buffer on each rank's GPU, or on the NUMA node beside it.
  virtual RankBuffers add_device_buffer(const std::string& name, int64_t bytes, BufferClass buffer_class) = 0;
  virtual RankBuffers add_host_buffer(const std::string& name, int64_t bytes, BufferClass buffer_class) = 0;

  /// One range of each rank's GPU memory that several lanes fill between them: parts[part][rank], one after another, `bytes` each in name. Where
  /// the borders really lie may vary from step to step: parts are what stages declare, and the address of part 0 is the range's.
  virtual std::vector<RankBuffers> add_device_range(const std::string& name, int parts, int64_t bytes, BufferClass buffer_class) = 0;
  /// Inside an action of a stream lane: copies between any two memories of the machine, peers' GPUs included, in the lane's order.
  virtual void copy_bytes(void* to, const void* from, int64_t bytes, const StageContext& context) const = 0;

  // Parameters.
  /// Registers a unit with the engine: storage for its state and working weights. Before the first stage.
  virtual UnitId add_unit(ParameterUnit unit) = 0;
  virtual const ParameterUnit& unit(UnitId unit) const = 0;
  virtual UnitId ordinary_unit(int layer) const = 0;
  /// Emits the stages that bring a unit's working weights into a window of the ranks that need them, pending updates first. Delivering the unit
  /// that is still in its window again emits nothing.
  virtual Delivery deliver(UnitId unit) = 0;
  /// Emits nothing: reserves the unit's gradient buffers for the compute stages that follow.
  virtual GradientTarget gradient_target(UnitId unit) = 0;
  /// For gradients that come in parts: a stage a rank that sets them to 0, after which stages accumulate.
  virtual void emit_zero(int layer, GradientTarget& target) = 0;
  /// Emits reduction over ranks, the way to the owner, and the update (or leaves it pending).
  virtual void retire(UnitId unit) = 0;
  /// Tensors of a unit inside an action: working weights and gradient sinks, one for each piece.
  virtual LayerWeights weights(const Delivery& delivery, int rank) const = 0;
  virtual LayerGradients gradients(const GradientTarget& target, int rank, bool accumulate) const = 0;

  // A decoder layer's halves, one stage a rank for each part. `ordinary` is the delivered ordinary unit of the layer. Activations hold at least the
  // tokens of the part; results of parts fill them one after another. What is written may be what is read: y may be x in emit_mixer_forward and
  // emit_project (no part reads rows of x that another replaces), z may be y, dy may be dz, dx may be dy. Not in emit_mixer_replay: backward reads x.
  virtual const Mixer& mixer(int layer) const = 0;
  /// Most tokens of a rank that a call of emit_feed_forward is about.
  virtual int64_t feed_forward_tokens() const = 0;

  /// Bytes of a layer's attention results over that many sequences; 0: it has none.
  int64_t keep_bytes(int layer, int64_t sequences) const;
  /// A whole or sequential part's forward. `results` (or empty) receives what attention gives, or gives it to kReplayKept; `before` and `after` (or empty) are slots with the states at
  /// the borders of a kSequence part; a sequence begins without a state.
  virtual void emit_mixer_forward(int layer, const Delivery& ordinary, const MixerPart& part, Pass pass, const Activation& x, const Activation& y, const AttentionResults& results,
                                  const RankBuffers& before, const RankBuffers& after) = 0;
  /// A whole part's replay from the input and, unless empty, kept results. Returns what it saved. Pass::kForward: the forward itself, which retains.
  virtual RankBuffers emit_mixer_replay(int layer, const Delivery& ordinary, const MixerPart& part, Pass pass, const Activation& x, const Activation& y, const AttentionResults& results) = 0;
  /// `results`: those that the replay read, and whose memory `saved` may refer to.
  virtual void emit_mixer_backward(int layer, const Delivery& ordinary, const GradientTarget& gradient, const MixerPart& part, const Activation& x, const RankBuffers& saved,
                                   const AttentionResults& results, const Activation& dy, const Activation& dx) = 0;
  /// Replay and backward of a whole or sequential part in one stage, so that nothing is saved. `state_gradient`: a slot that goes from part to part.
  virtual void emit_mixer_rebuilt_backward(int layer, const Delivery& ordinary, const GradientTarget& gradient, const MixerPart& part, const Activation& x, const AttentionResults& results,
                                           const RankBuffers& before, const RankBuffers& state_gradient, const Activation& dy, const Activation& dx) = 0;
  // AttentionParts. `part` of emit_project is whole or kSequence, of emit_enter_backward whole; key_sums: a slot for each set of sequences; dnormed: of add_sums.
  virtual void emit_attend(int layer, const Delivery& ordinary, const MixerPart& part, Pass pass, const Activation& x, const AttentionResults& results) = 0;
  virtual void emit_project(int layer, const Delivery& ordinary, const MixerPart& part, const Activation& x, const AttentionResults& results, const Activation& y) = 0;
  /// Returns dy itself where the mixer has nothing between Wo and the residual sum.
  virtual Activation emit_project_backward(int layer, const Delivery& ordinary, const GradientTarget& gradient, const MixerPart& part, const Activation& x, const AttentionResults& results,
                                           const Activation& dy) = 0;
  virtual void emit_attend_backward(int layer, const Delivery& ordinary, const GradientTarget& gradient, const MixerPart& part, const Activation& x, const AttentionResults& results,
                                    const Activation& dprojected, const RankBuffers& key_sums, const Activation& dnormed) = 0;
  virtual void emit_enter_backward(int layer, const Delivery& ordinary, const GradientTarget& gradient, const MixerPart& part, const Activation& x, const Activation& dnormed,
                                   const Activation& dy, const Activation& dx) = 0;

  /// Front, experts (through the ExpertStrategy) and back of a part. Pass::kForward decides its routing, others reuse it. `z` null: nobody reads the result.
  /// `save`: for a backward; the forward then retains.
  virtual FeedForwardRecord emit_feed_forward(int layer, const Delivery& ordinary, const TokenPart& part, Pass pass, const Activation& y, const Activation* z, bool save) = 0;
  /// `dy` receives the gradient of y. Runs the experts' backward through the ExpertStrategy.
  virtual void emit_feed_forward_backward(int layer, const Delivery& ordinary, const GradientTarget& gradient, const TokenPart& part, const FeedForwardRecord& record, const Activation& y,
                                          const Activation& dz, const Activation& dy) = 0;

  // Ends of the model.
  virtual void begin_step() = 0;
  virtual void emit_embedding(const RankBuffers& x) = 0;
  /// Final norm, head, loss; `dx` receives the gradient of x.
  virtual void emit_head(const RankBuffers& x, const RankBuffers& dx) = 0;
  virtual void emit_embedding_backward(const RankBuffers& dx) = 0;
  virtual void end_step() = 0;

  // Copies between a rank's GPU and the host, in pieces of the plan's size; `host` is a buffer on a NUMA node. `device`: persistent buffers, or transient ones of
  // `bytes`, which stages of the compute lane make before and touch after the copy.
  virtual void emit_store(const std::string& kind, int layer, const RankBuffers& device, const RankBuffers& host, int64_t bytes) = 0;
  virtual void emit_load(const std::string& kind, int layer, const RankBuffers& host, const RankBuffers& device, int64_t bytes) = 0;
  /// A stage a rank, in the pass over `layer`, that makes the memory of transient slots: for copies to fill, or for stages that fill it in parts.
  virtual void emit_reserve(int layer, const RankBuffers& slots) = 0;
  /// A stage a rank that ends the lives of transient slots, once the copies that read them are done.
  virtual void emit_release(int layer, const RankBuffers& slots) = 0;
};

}  // namespace abi_1
}  // namespace oom
