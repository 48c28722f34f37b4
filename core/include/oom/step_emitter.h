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
  /// What a layer's halves put into Saved, a rank: sizes for add_activation.
  virtual int64_t mixer_saved_bytes(int layer) const = 0;
  virtual int64_t feed_forward_saved_bytes(int layer) const = 0;
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
  /// Emits reduction over ranks, the way to the owner, and the update (or leaves it pending).
  virtual void retire(UnitId unit) = 0;
  /// Tensors of a unit inside an action: working weights and gradient sinks, one for each piece.
  virtual LayerWeights weights(const Delivery& delivery, int rank) const = 0;
  virtual LayerGradients gradients(const GradientTarget& target, int rank, bool accumulate) const = 0;

  // A decoder layer's halves, one stage a rank each. `ordinary` is the delivered ordinary unit of the layer.
  virtual void emit_mixer_forward(int layer, const Delivery& ordinary, const RankBuffers& x, const RankBuffers& y) = 0;
  virtual void emit_mixer_replay(int layer, const Delivery& ordinary, const RankBuffers& x, const RankBuffers& y, const RankBuffers& saved) = 0;
  /// dx may be the buffer of dy.
  virtual void emit_mixer_backward(int layer, const Delivery& ordinary, const GradientTarget& gradient, const RankBuffers& x, const RankBuffers& saved,
                                   const RankBuffers& dy, const RankBuffers& dx) = 0;
  /// Front, experts (through the ExpertStrategy) and back. The forward decides the routing; `saved` non-empty: replay, which reuses it.
  virtual void emit_feed_forward(int layer, const Delivery& ordinary, const RankBuffers& y, const RankBuffers& z, const RankBuffers& saved) = 0;
  /// `dy` receives the gradient of y. Runs the experts' backward through the ExpertStrategy.
  virtual void emit_feed_forward_backward(int layer, const Delivery& ordinary, const GradientTarget& gradient, const RankBuffers& y, const RankBuffers& saved,
                                          const RankBuffers& dz, const RankBuffers& dy) = 0;

  // Ends of the model.
  virtual void begin_step() = 0;
  virtual void emit_embedding(const RankBuffers& x) = 0;
  /// Final norm, head, loss; `dx` receives the gradient of x.
  virtual void emit_head(const RankBuffers& x, const RankBuffers& dx) = 0;
  virtual void emit_embedding_backward(const RankBuffers& dx) = 0;
  virtual void end_step() = 0;

  // Copies between a rank's GPU and the host, in pieces of the plan's size; `host` is a buffer on a NUMA node.
  virtual void emit_store(const std::string& kind, int layer, const RankBuffers& device, const RankBuffers& host, int64_t bytes) = 0;
  virtual void emit_load(const std::string& kind, int layer, const RankBuffers& host, const RankBuffers& device, int64_t bytes) = 0;
};

}  // namespace abi_1
}  // namespace oom
