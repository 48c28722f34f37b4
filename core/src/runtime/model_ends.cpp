// The ends of the model and of the step: batch, embedding, head and loss, auxiliary loss, gradient norm.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "oom/ops/embedding.h"
#include "oom/ops/linear_cross_entropy.h"
#include "oom/ops/rms_norm.h"
#include "runtime/program_emitter.h"
#include "runtime/sublayer_price.h"

namespace oom::runtime {
namespace {

// Rows of logits that exist at once: FP32 logits of 2048 rows and 150 thousand tokens are 1.2 GiB.
constexpr int64_t kLossChunk = 2048;

std::vector<BufferId> joined(std::vector<BufferId> left, const std::vector<BufferId>& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

}  // namespace

void ProgramEmitter::add_ends() {
  const int64_t bytes = plan().tokens_per_rank() * 4;
  host_tokens_ = add_host_buffer("tokens", bytes, BufferClass::kStaging);
  host_targets_ = add_host_buffer("targets", bytes, BufferClass::kStaging);
  host_positions_ = add_host_buffer("positions", bytes, BufferClass::kStaging);
  tokens_ = add_device_buffer("tokens", bytes, BufferClass::kFixed);
  targets_ = add_device_buffer("targets", bytes, BufferClass::kFixed);
  position_buffers_ = add_device_buffer("positions", bytes, BufferClass::kFixed);
  if (plan().workload.isolated_documents) {
    host_documents_ = add_host_buffer("document limits", bytes + 4, BufferClass::kStaging);
    document_buffers_ = add_device_buffer("document limits", bytes + 4, BufferClass::kFixed);
  }
  losses_ = add_device_buffer("loss", 64, BufferClass::kResult);
  host_losses_ = add_host_buffer("loss", 64, BufferClass::kResult);
  const bool auxiliary = training() && plan().workload.router_aux_loss != 0.0 && model().routed.experts > 0;
  if (auxiliary) {
    const int64_t experts = model().routed.experts;
    statistics_ = add_device_buffer("router statistics", experts * 16, BufferClass::kResult);
    host_statistics_ = add_host_buffer("router statistics", experts * 16, BufferClass::kResult);
    coefficients_ = add_device_buffer("router coefficients", experts * 4, BufferClass::kResult);
    host_coefficients_ = add_named("host router coefficients", Place::numa(0), experts * 4, BufferClass::kResult);
  }
  add_expert_load();
  if (training() && plan().workload.clips) {
    clip_ = add_named("clipping factor", Place::numa(0), 64, BufferClass::kResult);
    units_.set_clip_buffer(clip_);
  }
}

ops::RoutingStatistics ProgramEmitter::statistics(int rank) const {
  const int64_t experts = model().routed.experts;
  return {context_.memory.view(statistics_[rank], at::kLong, {experts}), context_.memory.view(statistics_[rank], at::kDouble, {experts}, experts * 8)};
}

// Z and the order of the rows; these are gathered from the experts' input again.
int64_t ProgramEmitter::expert_saved_bytes(int64_t tokens) const {
  const int64_t rows = tokens * model().routed.top_k;
  return rows * (2 * model().routed.width * element_bytes(plan().workload.compute) + 8) + 8 * model().routed.experts;
}

double ProgramEmitter::embedding_scale() const {
  return compute_type() == at::kBFloat16 ? static_cast<double>(static_cast<float>(c10::BFloat16(static_cast<float>(model().embedding_scale)))) : model().embedding_scale;
}

void ProgramEmitter::begin_step() {
  if (training()) units_.begin_step();
}

void ProgramEmitter::emit_embedding(const RankBuffers& x) {
  const int64_t bytes = plan().tokens_per_rank() * 4;
  emit_copy("batch_in", kEmbeddingLayer, Lane::kH2d, host_tokens_, tokens_, bytes, false);
  emit_copy("batch_in", kEmbeddingLayer, Lane::kH2d, host_targets_, targets_, bytes, false);
  emit_copy("batch_in", kEmbeddingLayer, Lane::kH2d, host_positions_, position_buffers_, bytes, false);
  if (!document_buffers_.empty()) emit_copy("batch_in", kEmbeddingLayer, Lane::kH2d, host_documents_, document_buffers_, bytes + 4, false);
  const Delivery table = deliver(embedding_);
  for (int rank = 0; rank < ranks(); ++rank) {
    builder_.emit({.kind = "embedding_forward", .layer = kEmbeddingLayer, .lane = {Lane::kCompute, rank}, .reads = joined({tokens_[rank]}, table.reads[rank]), .writes = {x[rank]},
                   .cost = row_price(2, plan().tokens_per_rank(), plan(), model().hidden), .action = [this, table, rank, out = x[rank]](StageContext&) {
                     const LayerWeights weights = units_.weights(table, rank);
                     put(out, ops::embedding_forward(weights[0], context_.memory.view(tokens_[rank], at::kInt, {plan().tokens_per_rank()}), embedding_scale()));
                   }});
  }
  for (int rank = 0; rank < ranks() && !statistics_.empty(); ++rank) {
    builder_.emit({.kind = "router_statistics_zero", .lane = {Lane::kCompute, rank}, .writes = {statistics_[rank]},
                   .action = [this, rank](StageContext& context) { context_.transfer.zero(context_.memory.data(statistics_[rank]), model().routed.experts * 16, context.stream); }});
  }
  emit_expert_load_zero();
}

void ProgramEmitter::emit_head(const RankBuffers& x, const RankBuffers& dx) {
  if (!statistics_.empty()) emit_pooling();
  emit_expert_load_out();
  const bool training = this->training();
  const Delivery norm = deliver(final_norm_);
  const Delivery head = deliver(head_);
  GradientTarget norm_gradient, head_gradient;
  if (training) {
    norm_gradient = gradient_target(final_norm_);
    head_gradient = gradient_target(head_);
    if (head_ == embedding_) tied_gradient_ = head_gradient;
  }
  const int64_t tokens = plan().tokens_per_rank(), vocabulary = model().vocabulary, hidden = model().hidden;
  const double flops = 2.0 * static_cast<double>(tokens) * static_cast<double>(vocabulary) * static_cast<double>(hidden);
  const int64_t chunk = std::min(tokens, kLossChunk);
  for (int rank = 0; rank < ranks(); ++rank) {
    StageSpec spec{.kind = training ? "head_and_loss" : "loss", .layer = kHeadLayer, .lane = {Lane::kCompute, rank},
                   .reads = joined(joined({x[rank], targets_[rank]}, norm.reads[rank]), head.reads[rank]), .writes = {losses_[rank]},
                   .cost = {.gemm_flops = training ? 3 * flops : flops, .hbm_bytes = static_cast<double>(tokens * vocabulary) * (training ? 14 : 8),
                            .tokens = static_cast<double>(tokens)}};
    // Normed input, its gradient and a chunk of logits; the input's gradient comes when the logits are gone.
    const int64_t logits = chunk * vocabulary * 4, made = !training ? 0 : builder_.buffer(dx[rank]).lifetime == Lifetime::kPersistent ? boundary_bytes() : 0;
    spec.cost.workspace_bytes = boundary_bytes() + (training ? made + std::max(boundary_bytes(), logits) : logits) + tokens * 12;
    if (training) {
      spec.writes = joined(joined(joined(spec.writes, norm_gradient.writes[rank]), head_gradient.writes[rank]), {dx[rank]});
    }
    spec.action = [this, training, norm, head, norm_gradient, head_gradient, rank, chunk, in = x[rank], out = training ? dx[rank] : kNone](StageContext&) {
      const LayerWeights norm_weights = units_.weights(norm, rank), head_weights = units_.weights(head, rank);
      const ModelAdapter::FinalNorm& final_norm = context_.operators.final_norm;
      const auto flavour = static_cast<ops::NormFlavour>(final_norm.flavour);
      const at::Tensor hidden_in = activation(in);
      const ops::NormOutput normed = ops::rms_norm_forward(hidden_in, norm_weights[0], final_norm.epsilon, flavour);
      const at::Tensor targets = context_.memory.view(targets_[rank], at::kInt, {plan().tokens_per_rank()});
      const at::Tensor loss = context_.memory.view(losses_[rank], at::kDouble, {1});
      const ops::LinearCrossEntropySettings settings{.valid_targets = context_.run.valid_tokens, .chunk_tokens = chunk, .soft_cap = model().logit_softcap};
      if (!training) {
        loss.copy_(ops::linear_cross_entropy_loss(normed.y, head_weights[0], targets, settings).view({1}));
        return;
      }
      const LayerGradients norm_sinks = units_.gradients(norm_gradient, rank, false), head_sinks = units_.gradients(head_gradient, rank, false);
      const ops::LinearCrossEntropy result = ops::linear_cross_entropy(normed.y, head_weights[0], targets, settings, head_sinks[0]);
      loss.copy_(result.loss_sum.view({1}));
      put(out, ops::rms_norm_backward(result.dh, hidden_in, norm_weights[0], normed.rstd, flavour, norm_sinks[0]).dx);
    };
    builder_.emit(std::move(spec));
  }
  emit_copy("loss_out", kHeadLayer, Lane::kD2h, losses_, host_losses_, sizeof(double), true);
  if (!training) return;
  if (head_ != embedding_) retire(head_);
  retire(final_norm_);
}

void ProgramEmitter::emit_embedding_backward(const RankBuffers& dx) {
  const bool tied = head_ == embedding_;
  const GradientTarget target = tied ? tied_gradient_ : gradient_target(embedding_);
  for (int rank = 0; rank < ranks(); ++rank) {
    StageSpec spec{.kind = "embedding_backward", .layer = kEmbeddingLayer, .lane = {Lane::kCompute, rank}, .reads = {dx[rank], tokens_[rank]},
                   .cost = {.hbm_bytes = static_cast<double>(boundary_bytes() + model().vocabulary * model().hidden * 4), .workspace_bytes = plan().tokens_per_rank() * 32}};
    (tied ? spec.updates : spec.writes) = target.writes[rank];
    spec.action = [this, target, tied, rank, in = dx[rank]](StageContext&) {
      const LayerGradients sinks = units_.gradients(target, rank, tied);
      ops::embedding_backward(sinks[0], activation(in), context_.memory.view(tokens_[rank], at::kInt, {plan().tokens_per_rank()}), 0, embedding_scale(), model().padding_token);
    };
    builder_.emit(std::move(spec));
  }
  retire(embedding_);
}

void ProgramEmitter::emit_pooling() {
  const int64_t experts = model().routed.experts;
  int64_t routed_layers = 0;
  for (const LayerSpec& layer : model().layers) routed_layers += layer.routed() ? 1 : 0;
  const double rows = static_cast<double>(routed_layers) * static_cast<double>(plan().tokens_per_rank() * ranks());
  emit_copy("router_statistics_out", kHeadLayer, Lane::kD2h, statistics_, host_statistics_, experts * 16, true);
  // aux = E sum_e f[e] P[e] over all layers, slices and ranks together: the product comes after pooling.
  builder_.emit({.kind = "router_statistics_pool", .layer = kHeadLayer, .lane = {Lane::kIssue, 0}, .reads = host_statistics_, .writes = {host_coefficients_},
                 .action = [this, experts, rows](StageContext&) {
                   float* coefficients = static_cast<float*>(context_.memory.data(host_coefficients_));
                   double loss = 0;
                   for (int64_t e = 0; e < experts; ++e) {
                     double count = 0, probability = 0;
                     for (const BufferId buffer : host_statistics_) {
                       count += static_cast<double>(static_cast<const int64_t*>(context_.memory.data(buffer))[e]);
                       probability += static_cast<const double*>(context_.memory.data(buffer))[experts + e];
                     }
                     loss += count / rows * (probability / rows);
                     coefficients[e] = static_cast<float>(plan().workload.router_aux_loss * static_cast<double>(experts) * count / (rows * rows));
                   }
                   context_.run.result.aux_loss = static_cast<double>(experts) * loss;
                 }});
  emit_copy("router_coefficients_in", kHeadLayer, Lane::kH2d, RankBuffers(ranks(), host_coefficients_), coefficients_, experts * 4, false);
}

void ProgramEmitter::end_step() {
  const bool training = this->training();
  if (training) units_.finish_pending();
  const std::vector<BufferId> norms = training ? units_.norms() : std::vector<BufferId>{};
  StageSpec spec{.kind = "step_result", .lane = {Lane::kIssue, 0}, .reads = joined(joined(host_losses_, host_expert_load_), norms), .step_result = true};
  if (clip_ != kNone) spec.writes = {clip_};
  spec.action = [this, training, norms](StageContext& context) {
    StepResult& result = context_.run.result;
    result.loss_sum = 0;
    for (const BufferId loss : host_losses_) result.loss_sum += *static_cast<const double*>(context_.memory.data(loss));
    result.valid_tokens = context_.run.valid_tokens;
    if (!training) return;
    collect_expert_load(context.step);
    double squares = 0;
    for (const BufferId norm : norms) squares += *static_cast<const double*>(context_.memory.data(norm));
    result.grad_norm = std::sqrt(squares);
    if (!std::isfinite(result.loss_sum)) {
      int rank = 0;
      while (rank + 1 < ranks() && std::isfinite(*static_cast<const double*>(context_.memory.data(host_losses_[rank])))) ++rank;
      throw DivergedError(cat("step ", context.step, ": the loss of rank ", rank, " is ", result.loss_sum, " at the head; lower train.learning_rate"));
    }
    if (!std::isfinite(squares)) {
      size_t shard = 0;
      while (std::isfinite(*static_cast<const double*>(context_.memory.data(norms[shard])))) ++shard;
      throw DivergedError(cat("step ", context.step, ": the gradient of ", buffers_.at(norms[shard]).name, " is not finite; lower train.learning_rate"));
    }
    if (clip_ != kNone) {
      // As torch.nn.utils.clip_grad_norm_: the factor is never above one, and 1e-6 keeps it finite.
      *static_cast<double*>(context_.memory.data(clip_)) = std::min(1.0, context_.run.clip_norm / (result.grad_norm + 1e-6));
    }
  };
  builder_.emit(std::move(spec));
}

void ProgramEmitter::emit_drain() {
  units_.begin_step();
  units_.finish_pending();
}

}  // namespace oom::runtime
