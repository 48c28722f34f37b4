/// The StepEmitter that the engine gives to strategies: parameter streaming by UnitStream, a decoder layer's halves and the ends of the model as
/// stages, and the persistent storage they need.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "oom/activation_strategy.h"
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
    const ActivationStrategy* activations = nullptr;  // null: a program without activations
    comm::DeviceTransfer& transfer;
    const HostPools& pools;
    StepMemory& memory;
    RunState& run;
    Purpose purpose = Purpose::kTraining;
    ProgramUse use = ProgramUse::kRun;
  };

  explicit ProgramEmitter(const Context& context);
  ~ProgramEmitter() override;

  ProgramBuilder& program() override { return builder_; }
  StepMemory& memory() override { return context_.memory; }
  const ModelDescription& model() const override { return context_.model; }
  const Plan& plan() const override { return context_.plan; }

  RankBuffers add_activation(const std::string& name, int64_t bytes, BufferClass buffer_class) override;
  RankBuffers add_device_buffer(const std::string& name, int64_t bytes, BufferClass buffer_class) override;
  RankBuffers add_host_buffer(const std::string& name, int64_t bytes, BufferClass buffer_class) override;

  std::vector<RankBuffers> add_device_range(const std::string& name, int parts, int64_t bytes, BufferClass buffer_class) override;
  void copy_bytes(void* to, const void* from, int64_t bytes, const StageContext& context) const override;

  UnitId add_unit(ParameterUnit unit) override { return units_.add(std::move(unit)); }
  const ParameterUnit& unit(UnitId unit) const override { return units_.unit(unit); }
  UnitId ordinary_unit(int layer) const override { return ordinary_.at(layer); }
  Delivery deliver(UnitId unit) override { return units_.deliver(unit); }
  GradientTarget gradient_target(UnitId unit) override { return units_.gradient_target(unit); }
  void emit_zero(int layer, GradientTarget& target) override;
  void retire(UnitId unit) override { units_.retire(unit); }
  LayerWeights weights(const Delivery& delivery, int rank) const override;
  LayerGradients gradients(const GradientTarget& target, int rank, bool accumulate) const override;

  const Mixer& mixer(int layer) const override { return *context_.operators.mixers.at(layer); }
  int64_t feed_forward_tokens() const override;
  void emit_mixer_forward(int layer, const Delivery& ordinary, const MixerPart& part, Pass pass, const Activation& x, const Activation& y, const AttentionResults& results,
                          const RankBuffers& before, const RankBuffers& after) override;
  RankBuffers emit_mixer_replay(int layer, const Delivery& ordinary, const MixerPart& part, Pass pass, const Activation& x, const Activation& y, const AttentionResults& results) override;
  void emit_mixer_backward(int layer, const Delivery& ordinary, const GradientTarget& gradient, const MixerPart& part, const Activation& x, const RankBuffers& saved,
                           const AttentionResults& results, const Activation& dy, const Activation& dx) override;
  void emit_mixer_rebuilt_backward(int layer, const Delivery& ordinary, const GradientTarget& gradient, const MixerPart& part, const Activation& x, const AttentionResults& results,
                                   const RankBuffers& before, const RankBuffers& state_gradient, const Activation& dy, const Activation& dx) override;
  void emit_attend(int layer, const Delivery& ordinary, const MixerPart& part, Pass pass, const Activation& x, const AttentionResults& results) override;
  void emit_project(int layer, const Delivery& ordinary, const MixerPart& part, const Activation& x, const AttentionResults& results, const Activation& y) override;
  Activation emit_project_backward(int layer, const Delivery& ordinary, const GradientTarget& gradient, const MixerPart& part, const Activation& x, const AttentionResults& results,
                                   const Activation& dy) override;
  void emit_attend_backward(int layer, const Delivery& ordinary, const GradientTarget& gradient, const MixerPart& part, const Activation& x, const AttentionResults& results,
                            const Activation& dprojected, const RankBuffers& key_sums, const Activation& dnormed) override;
  void emit_enter_backward(int layer, const Delivery& ordinary, const GradientTarget& gradient, const MixerPart& part, const Activation& x, const Activation& dnormed,
                           const Activation& dy, const Activation& dx) override;
  FeedForwardRecord emit_feed_forward(int layer, const Delivery& ordinary, const TokenPart& part, Pass pass, const Activation& y, const Activation* z, bool save) override;
  void emit_feed_forward_backward(int layer, const Delivery& ordinary, const GradientTarget& gradient, const TokenPart& part, const FeedForwardRecord& record, const Activation& y,
                                  const Activation& dz, const Activation& dy) override;

  void begin_step() override;
  void emit_embedding(const RankBuffers& x) override;
  void emit_head(const RankBuffers& x, const RankBuffers& dx) override;
  void emit_embedding_backward(const RankBuffers& dx) override;
  void end_step() override;
  /// Emits only the updates that a training step left pending: the drain program.
  void emit_drain();

  void emit_store(const std::string& kind, int layer, const RankBuffers& device, const RankBuffers& host, int64_t bytes) override;
  void emit_load(const std::string& kind, int layer, const RankBuffers& host, const RankBuffers& device, int64_t bytes) override;
  void emit_reserve(int layer, const RankBuffers& slots) override;
  void emit_release(int layer, const RankBuffers& slots) override;

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
  /// Some sequences of a rank, and what its description borrows.
  struct Sequences {
    SequenceInfo info;
    std::vector<int32_t> starts;
  };
  Sequences sequences(int rank, const MixerPart& part) const;
  /// What the stages that call sequences() read.
  std::vector<BufferId> sequence_buffers(int rank) const;
  int64_t part_begin(const MixerPart& part) const;
  int64_t part_tokens(const MixerPart& part) const;
  /// The whole of an activation.
  at::Tensor activation(BufferId buffer) const;
  /// Stores an operator's result: into the slot of a transient buffer, into the memory of a persistent one.
  void put(BufferId buffer, at::Tensor value) const;
  /// Some rows of an activation on one rank.
  struct RowSpan {
    BufferId buffer = kNone;
    int64_t total = 0, offset = 0, count = 0;
  };
  /// Where a rank's tensors are.
  at::Device device_of(int rank) const;
  static RowSpan span(const Activation& activation, int rank, int64_t begin, int64_t count);
  at::Tensor rows(const RowSpan& span) const;
  void put_rows(const RowSpan& span, at::Tensor value) const;
  /// Attention results of a part, in a transient slot (of tensors, which the first that fills it makes, or reserved) or in persistent memory.
  struct ResultSpan {
    BufferId buffer = kNone;
    int64_t first_sequence = 0, sequences = 0;
  };
  static ResultSpan span(const AttentionResults& results, int rank) { return results.empty() ? ResultSpan{} : ResultSpan{results.buffers[rank], results.first_sequence, results.sequences}; }
  Keep results(const ResultSpan& span, int layer, const MixerPart& part) const;
  /// Declares that a stage fills `amount` of a buffer's `total`: the first such stage overwrites what was there, later ones add their part.
  void declare_fill(StageSpec& spec, BufferId buffer, int64_t amount, int64_t total);
  void declare_fill(StageSpec& spec, const RowSpan& span) { declare_fill(spec, span.buffer, span.count, span.total); }
  /// The same for an operator whose result is a tensor of its own until it is copied to its rows or takes the place of what was there.
  void declare_result(StageSpec& spec, const RowSpan& span);
  /// Declares that a stage adds to a transient slot: the first that does makes it.
  void declare_sum(StageSpec& spec, BufferId buffer);
  /// A compute stage over a part of a mixer, without its action.
  StageSpec mixer_stage(const char* kind, int layer, const Delivery& ordinary, const MixerPart& part, Pass pass, int rank) const;
  /// A layer's weights by position in its parameter list, out of its ordinary unit; experts are undefined.
  LayerWeights layer_weights(const Delivery& ordinary, int layer, int rank) const;
  LayerGradients layer_gradients(const GradientTarget& target, int layer, int rank) const;
  void add_ends();
  ops::RoutingStatistics statistics(int rank) const;
  int64_t expert_saved_bytes(int64_t tokens) const;
  double embedding_scale() const;
  void emit_pooling();
  int64_t expert_load_bytes() const;
  void add_expert_load();
  void emit_expert_load_zero();
  /// Inside the action that decides a layer's routing.
  void count_experts(int layer, int rank, const at::Tensor& indices, int64_t step) const;
  void emit_expert_load_out();
  /// Sums the ranks' counts into the step's result.
  void collect_expert_load(int64_t step) const;
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
  RankBuffers expert_load_, host_expert_load_;               // int64 [layers, experts]; empty when no step wants them
  BufferId host_coefficients_ = kNone, clip_ = kNone;
  GradientTarget tied_gradient_;                                   // of a tied embedding, from the head on
  std::map<std::pair<int, int64_t>, RankBuffers> routings_;        // by layer and first token of the part
  std::map<BufferId, int64_t> filled_;                             // how much of a buffer's next version has been emitted
  std::set<BufferId> summed_;                                      // transient slots that exist at this point of emission
};

}  // namespace oom::runtime
