/// The StepEmitter that the engine gives to strategies: parameter streaming by UnitStream, a decoder layer's halves and the ends of the model as
/// stages, and the persistent storage they need.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "oom/expert_strategy.h"
#include "oom/model_adapter.h"
#include "runtime/unit_stream.h"

namespace oom::runtime {

/// A model's operators, built once; they keep no state of a call.
struct ModelOperators {
  std::vector<std::unique_ptr<Mixer>> mixers;
  std::vector<std::unique_ptr<FeedForward>> feed_forwards;
  ModelAdapter::FinalNorm final_norm;
};

class ProgramEmitter final : public StepEmitter {
 public:
  enum class Purpose { kTraining, kEvaluation, kDrain };
  struct Context {
    const ModelDescription& model;
    const ModelOperators& operators;
    const Plan& plan;
    ExpertStrategy& experts;
    comm::DeviceTransfer& transfer;
    const HostPools& pools;
    StepMemory& memory;
    RunState& run;
    Purpose purpose = Purpose::kTraining;
  };

  explicit ProgramEmitter(const Context& context);
  ~ProgramEmitter() override;

  ProgramBuilder& program() override { return builder_; }
  StepMemory& memory() override { return context_.memory; }
  const ModelDescription& model() const override { return context_.model; }
  const Plan& plan() const override { return context_.plan; }

  RankBuffers add_activation(const std::string& name, int64_t bytes, BufferClass buffer_class) override;
  int64_t mixer_saved_bytes(int layer) const override;
  int64_t feed_forward_saved_bytes(int layer) const override;
  RankBuffers add_device_buffer(const std::string& name, int64_t bytes, BufferClass buffer_class) override;
  RankBuffers add_host_buffer(const std::string& name, int64_t bytes, BufferClass buffer_class) override;

  std::vector<RankBuffers> add_device_range(const std::string& name, int parts, int64_t bytes, BufferClass buffer_class) override;
  void copy_bytes(void* to, const void* from, int64_t bytes, const StageContext& context) const override;

  UnitId add_unit(ParameterUnit unit) override { return units_.add(std::move(unit)); }
  const ParameterUnit& unit(UnitId unit) const override { return units_.unit(unit); }
  UnitId ordinary_unit(int layer) const override { return ordinary_.at(layer); }
  Delivery deliver(UnitId unit) override { return units_.deliver(unit); }
  GradientTarget gradient_target(UnitId unit) override { return units_.gradient_target(unit); }
  void retire(UnitId unit) override { units_.retire(unit); }
  LayerWeights weights(const Delivery& delivery, int rank) const override;
  LayerGradients gradients(const GradientTarget& target, int rank, bool accumulate) const override;

  void emit_mixer_forward(int layer, const Delivery& ordinary, const RankBuffers& x, const RankBuffers& y) override;
  void emit_mixer_replay(int layer, const Delivery& ordinary, const RankBuffers& x, const RankBuffers& y, const RankBuffers& saved) override;
  void emit_mixer_backward(int layer, const Delivery& ordinary, const GradientTarget& gradient, const RankBuffers& x, const RankBuffers& saved,
                           const RankBuffers& dy, const RankBuffers& dx) override;
  void emit_feed_forward(int layer, const Delivery& ordinary, const RankBuffers& y, const RankBuffers& z, const RankBuffers& saved) override;
  void emit_feed_forward_backward(int layer, const Delivery& ordinary, const GradientTarget& gradient, const RankBuffers& y, const RankBuffers& saved,
                                  const RankBuffers& dz, const RankBuffers& dy) override;

  void begin_step() override;
  void emit_embedding(const RankBuffers& x) override;
  void emit_head(const RankBuffers& x, const RankBuffers& dx) override;
  void emit_embedding_backward(const RankBuffers& dx) override;
  void end_step() override;
  /// Emits only the updates that a training step left pending: the drain program.
  void emit_drain();

  void emit_store(const std::string& kind, int layer, const RankBuffers& device, const RankBuffers& host, int64_t bytes) override;
  void emit_load(const std::string& kind, int layer, const RankBuffers& host, const RankBuffers& device, int64_t bytes) override;

  /// Ends emission: derives edges and makes transient buffers go after their last reader.
  BuiltProgram finish();
  const StoragePlan& storage() const { return storage_; }
  const UnitStream& units() const { return units_; }
  /// The rank's host buffers that the engine fills before a step: tokens, targets, positions, int32 [T] each.
  const RankBuffers& host_tokens() const { return host_tokens_; }
  const RankBuffers& host_targets() const { return host_targets_; }
  const RankBuffers& host_positions() const { return host_positions_; }
  /// Limits of isolated documents, int32, at most T + 1 each (RunState says how many); empty when documents are joined.
  const RankBuffers& host_documents() const { return host_documents_; }

 private:
  bool training() const { return context_.purpose != Purpose::kEvaluation; }
  SequenceInfo sequence(int rank) const;
  /// What the stages that call sequence() read.
  std::vector<BufferId> sequence_buffers(int rank) const;
  at::Tensor activation(BufferId buffer) const;
  /// Stores an operator's result: into the slot of a transient buffer, into the memory of a persistent one.
  void put(BufferId buffer, at::Tensor value) const;
  /// A layer's weights by position in its parameter list, out of its ordinary unit; experts are undefined.
  LayerWeights layer_weights(const Delivery& ordinary, int layer, int rank) const;
  LayerGradients layer_gradients(const GradientTarget& target, int layer, int rank) const;
  void add_ends();
  ops::RoutingStatistics statistics(int rank) const;
  int64_t expert_saved_bytes() const;
  double embedding_scale() const;
  void emit_pooling();
  void emit_copy(const std::string& kind, int layer, Lane lane, const RankBuffers& from, const RankBuffers& to, int64_t bytes, bool to_host);
  BufferId add_named(const std::string& name, Place place, int64_t bytes, BufferClass buffer_class);

  Context context_;
  ProgramBuilder builder_;         // until finish
  std::vector<Buffer> buffers_;    // from finish on: what actions look up
  StoragePlan storage_;
  UnitStream units_;
  std::vector<UnitId> ordinary_;                  // by layer
  std::vector<std::vector<int>> positions_;       // by layer: position of each piece of the ordinary unit in the layer's list
  std::vector<int64_t> layer_parameters_;         // by layer: length of its list
  UnitId embedding_ = -1, head_ = -1, final_norm_ = -1;  // head_ == embedding_ when tied
  RankBuffers host_tokens_, host_targets_, host_positions_, host_documents_, tokens_, targets_, position_buffers_, document_buffers_;
  RankBuffers losses_, host_losses_;
  RankBuffers statistics_, host_statistics_, coefficients_;  // auxiliary loss; empty without it
  BufferId host_coefficients_ = kNone, clip_ = kNone;
  GradientTarget tied_gradient_;                                   // of a tied embedding, from the head on
  std::map<int, RankBuffers> routings_, fronts_, expert_saved_;  // by layer
};

}  // namespace oom::runtime
