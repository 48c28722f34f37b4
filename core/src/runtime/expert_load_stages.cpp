// Tokens by layer and expert, counted on the steps that RunState asks for: on the others the same stages run and do nothing.
#include "oom/ops/expert_counts.h"
#include "runtime/program_emitter.h"

namespace oom::runtime {

int64_t ProgramEmitter::expert_load_bytes() const { return static_cast<int64_t>(model().layers.size()) * model().routed.experts * static_cast<int64_t>(sizeof(int64_t)); }

void ProgramEmitter::add_expert_load() {
  if (!training() || !context_.run.counts_experts || model().routed.experts == 0) return;
  expert_load_ = add_device_buffer("expert load", expert_load_bytes(), BufferClass::kResult);
  host_expert_load_ = add_host_buffer("expert load", expert_load_bytes(), BufferClass::kResult);
}

void ProgramEmitter::emit_expert_load_zero() {
  if (expert_load_.empty()) return;
  for (int rank = 0; rank < ranks(); ++rank) {
    builder_.emit({.kind = "expert_load_zero", .lane = {Lane::kCompute, rank}, .writes = {expert_load_[rank]}, .action = [this, rank](StageContext& context) {
                     if (context_.run.counts_experts(context.step)) context_.transfer.zero(context_.memory.data(expert_load_[rank]), expert_load_bytes(), context.stream);
                   }});
  }
}

void ProgramEmitter::count_experts(int layer, int rank, const at::Tensor& indices, int64_t step) const {
  if (!context_.run.counts_experts(step)) return;
  const int64_t experts = model().routed.experts;
  ops::add_expert_counts(context_.memory.view(expert_load_[rank], at::kLong, {experts}, layer * experts * static_cast<int64_t>(sizeof(int64_t))), indices);
}

void ProgramEmitter::emit_expert_load_out() {
  if (expert_load_.empty()) return;
  for (int rank = 0; rank < ranks(); ++rank) {
    builder_.emit({.kind = "expert_load_out", .layer = kHeadLayer, .lane = {Lane::kD2h, rank}, .reads = {expert_load_[rank]}, .writes = {host_expert_load_[rank]},
                   .action = [this, rank](StageContext& context) {
                     if (context_.run.counts_experts(context.step)) copy_bytes(context_.memory.data(host_expert_load_[rank]), context_.memory.data(expert_load_[rank]), expert_load_bytes(), context);
                   }});
  }
}

void ProgramEmitter::collect_expert_load(int64_t step) const {
  std::vector<std::vector<int64_t>>& load = context_.run.result.expert_load;
  load.clear();
  if (expert_load_.empty() || !context_.run.counts_experts(step)) return;
  const size_t experts = static_cast<size_t>(model().routed.experts);
  load.assign(model().layers.size(), std::vector<int64_t>(experts, 0));
  for (const BufferId buffer : host_expert_load_) {
    const int64_t* counts = static_cast<const int64_t*>(context_.memory.data(buffer));
    for (std::vector<int64_t>& layer : load) {
      for (int64_t& tokens : layer) tokens += *counts++;
    }
  }
}

}  // namespace oom::runtime
