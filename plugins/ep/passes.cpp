// The stages of a pass over a layer. Between two visits of an owner's experts the next one's rows are already on their way: hence the order of emission.
#include <ATen/ops/empty.h>
#include <oom/ops/experts.h>
#include <oom/ops/permutation.h>

#include <algorithm>

#include "exchange.h"

namespace oom::ep {
namespace {

constexpr double kVisitLaunches = 0.1e-3;  // seconds, on H200: what the small kernels of a visit take however few its rows

std::vector<BufferId> operator+(std::vector<BufferId> left, const std::vector<BufferId>& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

/// Rows of `work` that `owner` and its sources exchange; a parcel there and its place here.
template <typename Copy>
void for_each_parcel(const ExchangeShape& shape, RowCounts counts, int rank, bool as_source, int round, const Copy& copy) {
  // Everybody begins with the next rank, so that no rank is the first target of all.
  for (int step = 1; step <= shape.ranks; ++step) {
    const int peer = (rank + step) % shape.ranks;
    const Parcel part = as_source ? parcel(shape, counts, rank, peer, round) : parcel(shape, counts, peer, rank, round);
    if (part.rows > 0) copy(peer, part);
  }
}

}  // namespace

struct Exchange::Stages {
  Exchange& exchange;
  const Pass& pass;
  const RankBuffers* routed = nullptr;                    // forward
  const ExpertGradientBuffers* gradients = nullptr;       // backward
  const std::vector<GradientTarget>* targets = nullptr;

  bool backward() const { return gradients != nullptr; }
  bool retains() const { return !pass.kept.empty(); }
  /// What is kept of a visit, chunk by chunk.
  std::vector<BufferId> kept(const Visit& at, int owner) const {
    std::vector<BufferId> buffers;
    for (int chunk = 0; chunk < at.chunks && retains(); ++chunk) {
      const RankBuffers& kept = pass.kept[at.index + chunk * shape().rounds()];
      if (!kept.empty()) buffers.push_back(kept[owner]);
    }
    return buffers;
  }
  /// Whether a visit with an even share of rows is kept, and whether all of a chunk are.
  bool expects_kept(const Visit& at) const { return retains() && shape().expected_rows(at.chunk, at.round) <= shape().kept_rows(at.chunk, at.round); }
  bool expects_all_kept(int chunk) const { return retains() && shape().chunk_size(chunk) * shape().top_k <= shape().retain_rows; }
  const ExchangeShape& shape() const { return exchange.shape_; }
  /// The rings whose rows are replaced by results.
  const Ring& home() const { return backward() ? exchange.sent_gradients_ : exchange.sent_; }
  const Ring& away() const { return backward() ? exchange.received_gradients_ : exchange.received_; }
  ProgramBuilder& program() const { return exchange.emitter_.program(); }

  void emit() const {
    const std::vector<Visit> visits = exchange.visits_in_order();
    arrive(visits.front());
    for (size_t at = 0; at < visits.size(); ++at) {
      if (at + 1 < visits.size()) arrive(visits[at + 1]);
      for (int owner = 0; owner < shape().ranks; ++owner) compute(visits[at], owner);
      give_back(visits[at]);
      // After the next chunk's first visit has been queued, so that its experts need not wait for results on their way.
      if (at > 0 && visits[at].round == 0) combine(visits[at - 1]);
    }
    combine(visits.back());
  }

  // Bytes that a rank sends to others in a visit: of each row so many tensors, and as many values beside them.
  double peer_bytes(const Visit& at, int tensors, int values) const {
    const double others = static_cast<double>(shape().ranks - 1) / shape().ranks;
    return others * static_cast<double>(shape().expected_rows(at.chunk, at.round) * (tensors * exchange.sent_.layout.row_bytes() + values * kValueBytes));
  }

  void arrive(const Visit& at) const {
    if (at.round == 0) {
      for (int source = 0; source < shape().ranks; ++source) pack(at, source);
    }
    if (shape().alone()) return;
    for (int source = 0; source < shape().ranks; ++source) dispatch(at, source);
  }

  void pack(const Visit& at, int source) const {
    const int chunk = at.chunk;
    const int64_t bytes = shape().chunk_size(chunk) * shape().top_k * exchange.sent_.layout.row_bytes();
    StageSpec spec{.kind = "experts_pack", .layer = pass.layer, .part = chunk, .lane = {Lane::kCompute, source},
                   .reads = {pass.front[source], pass.routing[source], pass.order[source]}, .writes = exchange.sent_.parts(at.chunk_turn, source),
                   .cost = {.hbm_bytes = static_cast<double>((backward() && !expects_all_kept(chunk) ? 4 : 2) * bytes), .repeats = static_cast<double>(at.chunks),
                            .tokens = static_cast<double>(shape().chunk_size(chunk)), .workspace_bytes = shape().chunk_size(chunk) * shape().top_k * 4}};
    if (backward()) {
      spec.reads.push_back(gradients->drouted[source]);
      spec.writes = spec.writes + exchange.sent_gradients_.parts(at.chunk_turn, source);
    }
    spec.action = [self = exchange.shared_from_this(), chunk, source, front = pass.front[source], routing = pass.routing[source], order = pass.order[source],
                   drouted = backward() ? gradients->drouted[source] : kNone, kept = backward() && retains(), layer = pass.layer](StageContext&) {
      StepMemory& memory = self->emitter_.memory();
      const TokenRange tokens = self->tokens(chunk);
      const Routing& decided = memory.slot(routing).routing;
      const ChunkOrder sorted = self->chunk_order(order, chunk);
      if (!kept || !self->all_kept(self->row_counts(layer, source, chunk), chunk)) {
        pack_inputs(self->parcels(self->sent_, chunk, source), tokens.of(memory.slot(front).front.expert_input), tokens.of(decided.indices), sorted, self->shape_.owned_experts());
      }
      if (drouted != kNone) pack_gradients(self->parcels(self->sent_gradients_, chunk, source), tokens.of(memory.slot(drouted).tensor), tokens.of(decided.weights), sorted);
    };
    program().emit(std::move(spec));
  }

  void dispatch(const Visit& at, int source) const {
    const int tensors = backward() && !expects_kept(at) ? 2 : 1;
    const double bytes = peer_bytes(at, tensors, /*values=*/tensors);
    StageSpec spec{.kind = "experts_dispatch", .layer = pass.layer, .part = at.index, .lane = {Lane::kComm, source},
                   .reads = exchange.sent_.parts(at.chunk_turn, source) + std::vector{exchange.row_counts_.at(pass.layer)[source]},
                   .writes = exchange.received_.at(at.turn)[source], .cost = {.peer_bytes = bytes, .repeats = static_cast<double>(at.chunks), .bytes = bytes}};
    if (backward()) {
      spec.reads = spec.reads + exchange.sent_gradients_.parts(at.chunk_turn, source);
      spec.writes = spec.writes + exchange.received_gradients_.at(at.turn)[source];
    }
    spec.action = [self = exchange.shared_from_this(), at, source, layer = pass.layer, gradients = backward(), kept = backward() && retains()](StageContext& context) {
      const RowCounts counts = self->row_counts(layer, source, at.chunk);
      for_each_parcel(self->shape_, counts, source, /*as_source=*/true, at.round, [&](int owner, const Parcel& part) {
        if (!kept || !is_kept(self->shape_, counts, owner, at.chunk, at.round)) {
          self->push(self->parcels(self->sent_, at.chunk, source), part.from, self->parcels(self->received_, at.index, owner), part.at, part.rows, /*values=*/true, context);
        }
        if (!gradients) return;
        self->push(self->parcels(self->sent_gradients_, at.chunk, source), part.from, self->parcels(self->received_gradients_, at.index, owner), part.at, part.rows, /*values=*/true, context);
      });
    };
    program().emit(std::move(spec));
  }

  ops::ExpertsProblem problem(int64_t rows) const {
    const StepEmitter& emitter = exchange.emitter_;
    return {.device = emitter.plan().device == DeviceKind::kCuda ? c10::DeviceType::CUDA : c10::DeviceType::CPU, .dtype = emitter.compute_type(), .rows = rows,
            .experts = shape().owned_experts(), .hidden = emitter.model().hidden, .width = emitter.model().routed.width};
  }
  // What a visit of so many rows allocates: inputs and results [rows, H] and, where the visit is kept, Z.
  int64_t forward_bytes(int64_t rows, bool keeps) const {
    const int64_t x = rows * exchange.received_.layout.row_bytes(), z = x / exchange.received_.layout.hidden * 2 * exchange.emitter_.model().routed.width;
    return 2 * x + (keeps ? z : 0) + ops::experts_forward_workspace_bytes(problem(rows), keeps) + 12 * rows + 8 * shape().owned_experts();
  }
  // Inputs, their gradients, the results' gradients and Z.
  int64_t backward_bytes(int64_t rows) const {
    const int64_t x = rows * exchange.received_.layout.row_bytes(), z = x / exchange.received_.layout.hidden * 2 * exchange.emitter_.model().routed.width;
    return 3 * x + z + ops::experts_backward_workspace_bytes(problem(rows)) + 16 * rows + 8 * shape().owned_experts();
  }

  // Work of the rows expected in a visit, temporaries of as many as its buffers hold.
  Cost price(const Visit& at) const {
    const RoutedExperts& model = exchange.emitter_.model().routed;
    const double rows = static_cast<double>(shape().expected_rows(at.chunk, at.round));
    const double hidden = static_cast<double>(exchange.emitter_.model().hidden), width = static_cast<double>(model.width);
    const double element = static_cast<double>(exchange.received_.layout.row_bytes()) / hidden;
    const double weights = static_cast<double>(shape().owned_experts()) * 3 * width * hidden;
    const int64_t most = exchange.received_.layout.rows, kept_rows = retains() ? shape().kept_rows(at.chunk, at.round) : 0;
    Cost cost{.fixed_seconds = exchange.emitter_.plan().device == DeviceKind::kCuda ? kVisitLaunches : 0, .repeats = static_cast<double>(at.chunks),
              .tokens = static_cast<double>(shape().chunk_size(at.chunk)), .parameters = weights};
    if (!backward()) {
      cost.gemm_flops = 2 * rows * hidden * 3 * width;
      cost.hbm_bytes = element * (rows * (7 * hidden + 6 * width) + (rows > 0 ? weights : 0));
      cost.workspace_bytes = std::max(forward_bytes(most, false), forward_bytes(kept_rows, true));
    } else {
      const bool keeps = expects_kept(at);  // then neither are the rows grouped again, nor Z made
      cost.gemm_flops = 2 * rows * hidden * (keeps ? 6 : 8) * width;
      // Where a layer's experts are visited more than once, their gradients are made, read and added to FP32 sums each time.
      const double sums = exchange.visits() > 1 ? 12 * weights : 0;
      cost.hbm_bytes = element * (rows * (keeps ? 13 * hidden + 16 * width : 16 * hidden + 18 * width) + (rows > 0 ? 2 * weights : 0)) + (rows > 0 ? sums : 0);
      cost.workspace_bytes = backward_bytes(most);
    }
    // A visit that is not kept leaves its buffer empty.
    if (retains()) cost.workspace_bytes = std::max<int64_t>(0, cost.workspace_bytes - exchange.kept_bytes(at.chunk, at.round));
    return cost;
  }

  void compute(const Visit& at, int owner) const {
    const Delivery& shard = pass.shards[owner];
    StageSpec spec{.kind = backward() ? "experts_backward" : "experts_forward", .layer = pass.layer, .part = at.index, .lane = {Lane::kCompute, owner},
                   .reads = shard.reads[owner], .updates = away().parts(at.turn, owner), .cost = price(at)};
    if (!shape().alone()) spec.reads.push_back(exchange.row_counts_.at(pass.layer)[owner]);
    const std::vector<BufferId> all_kept = this->kept(at, owner);
    (backward() ? spec.reads : spec.writes) = (backward() ? spec.reads : spec.writes) + all_kept;
    const BufferId kept = all_kept.empty() ? kNone : all_kept.front();
    GradientTarget target;
    if (backward()) {
      target = (*targets)[owner];
      spec.reads = spec.reads + exchange.received_.parts(at.turn, owner);
      (at.index == 0 ? spec.writes : spec.updates) = (at.index == 0 ? spec.writes : spec.updates) + target.writes[owner];
    }
    spec.action = [self = exchange.shared_from_this(), at, owner, layer = pass.layer, shard, target, kept, backward = backward()](StageContext&) {
      const RowCounts counts = self->row_counts(layer, owner, at.chunk);
      const int64_t rows = rows_received(self->shape_, counts, owner, at.round);
      const bool keeps = kept != kNone && is_kept(self->shape_, counts, owner, at.chunk, at.round);
      const Parcels received = self->parcels(self->received_, at.index, owner);
      const ops::ExpertWeights weights = self->expert_weights(shard, owner);
      if (!backward) {
        OwnerRows made;
        run_forward(received, rows, weights, keeps ? &made : nullptr);
        if (made.x.defined()) self->emitter_.memory().slot(kept).saved.tensors = {made.x, made.z, made.ends, made.token_of, made.row_of};
        return;
      }
      const LayerGradients sinks = self->emitter_.gradients(target, owner, /*accumulate=*/at.index > 0);
      OwnerRows held;
      if (!keeps) {
        held = make_rows(received, rows, weights);
      } else if (const std::vector<at::Tensor> left = std::move(self->emitter_.memory().slot(kept).saved.tensors); !left.empty()) {
        held = {left[0], left[1], left[2], left[3], left[4]};
      }
      run_backward(held, self->parcels(self->received_gradients_, at.index, owner), weights, {.gate_up = sinks[0], .down = sinks[1]});
    };
    program().emit(std::move(spec));
  }

  void give_back(const Visit& at) const {
    if (shape().alone()) return;
    const double bytes = peer_bytes(at, 1, /*values=*/backward() ? 1 : 0);
    for (int owner = 0; owner < shape().ranks; ++owner) {
      StageSpec spec{.kind = "experts_return", .layer = pass.layer, .part = at.index, .lane = {Lane::kComm, owner},
                     .reads = away().parts(at.turn, owner) + std::vector{exchange.row_counts_.at(pass.layer)[owner]}, .updates = home().at(at.chunk_turn)[owner],
                     .cost = {.peer_bytes = bytes, .repeats = static_cast<double>(at.chunks), .bytes = bytes}};
      spec.action = [self = exchange.shared_from_this(), at, owner, layer = pass.layer, &from = away(), &to = home(), values = backward()](StageContext& context) {
        for_each_parcel(self->shape_, self->row_counts(layer, owner, at.chunk), owner, /*as_source=*/false, at.round, [&](int source, const Parcel& part) {
          self->push(self->parcels(from, at.index, owner), part.at, self->parcels(to, at.chunk, source), part.from, part.rows, values, context);
        });
      };
      program().emit(std::move(spec));
    }
  }

  void combine(const Visit& at) const {
    const int chunk = at.chunk;
    const int64_t bytes = shape().chunk_size(chunk) * (shape().top_k + 1) * exchange.sent_.layout.row_bytes();
    for (int source = 0; source < shape().ranks; ++source) {
      StageSpec spec{.kind = backward() ? "experts_combine_backward" : "experts_combine", .layer = pass.layer, .part = chunk, .lane = {Lane::kCompute, source},
                     .reads = home().parts(at.chunk_turn, source) + std::vector{pass.order[source]},
                     .cost = {.hbm_bytes = static_cast<double>(bytes), .repeats = static_cast<double>(at.chunks), .tokens = static_cast<double>(shape().chunk_size(chunk)),
                              .workspace_bytes = backward() ? shape().chunk_size(chunk) * shape().top_k * 4 : 0}};
      if (!backward()) spec.reads.push_back(pass.routing[source]);
      const std::vector<BufferId> out = backward() ? std::vector{gradients->dinput[source], gradients->dweights[source]} : std::vector{(*routed)[source]};
      (chunk == 0 ? spec.writes : spec.updates) = out;
      spec.action = [self = exchange.shared_from_this(), chunk, source, out, order = pass.order[source], routing = pass.routing[source], &from = home(), backward = backward()](StageContext&) {
        StepMemory& memory = self->emitter_.memory();
        const ExchangeShape& shape = self->shape_;
        const TokenRange tokens = self->tokens(chunk);
        const at::Tensor row_of = self->chunk_order(order, chunk).row_of;
        const Parcels returned = self->parcels(from, chunk, source);
        const at::Tensor rows = returned.rows(row_of.numel());
        at::Tensor& sum = memory.slot(out[0]).tensor;
        if (chunk == 0) sum = at::empty({shape.tokens, rows.size(1)}, rows.options());
        if (!backward) {
          ops::combine_out(tokens.of(sum), rows, row_of, {.weights = tokens.of(memory.slot(routing).routing.weights)});
          return;
        }
        ops::combine_out(tokens.of(sum), rows, row_of);
        at::Tensor& weights = memory.slot(out[1]).tensor;
        if (chunk == 0) weights = at::empty({shape.tokens, shape.top_k}, rows.options().dtype(at::kFloat));
        tokens.of(weights).copy_(ops::rows_to_choices(returned.weights(row_of.numel()).view(-1), row_of));
      };
      program().emit(std::move(spec));
    }
  }
};

void Exchange::push(const Parcels& from, int64_t from_row, const Parcels& to, int64_t to_row, int64_t rows, bool values, const StageContext& context) const {
  emitter_.copy_bytes(to.row(to_row), from.row(from_row), rows * from.layout.row_bytes(), context);
  if (values) emitter_.copy_bytes(to.value(to_row), from.value(from_row), rows * kValueBytes, context);
}

void Exchange::emit_forward(const Pass& pass, const RankBuffers& routed) {
  Stages{.exchange = *this, .pass = pass, .routed = &routed}.emit();
}

void Exchange::emit_backward(const Pass& pass, const ExpertGradientBuffers& gradients, const std::vector<GradientTarget>& targets) {
  add_gradient_rings();
  Stages{.exchange = *this, .pass = pass, .gradients = &gradients, .targets = &targets}.emit();
}

}  // namespace oom::ep
