#include "pipeline_program.h"

namespace oom::program {
namespace {

class Pipeline {
 public:
  explicit Pipeline(PipelineSize size) : size_(size), builder_(std::vector<int32_t>(static_cast<size_t>(size.ranks), 0), 1) {
    weight_bytes_ = static_cast<int64_t>(size.weight_bytes);
    for (int r = 0; r < size.ranks; ++r) ranks_.push_back(make_rank(r));
  }

  BuiltProgram run() {
    for (int l = 0; l < size_.layers; ++l) forward(l);
    for (int r = 0; r < size_.ranks; ++r) {
      Rank& rank = ranks_[r];
      builder_.emit({.kind = "loss", .lane = {Lane::kCompute, r}, .reads = {rank.activation}, .writes = {rank.gradient_in, rank.loss},
                     .cost = {.fixed_seconds = 1e-3}});
      builder_.emit({.kind = "loss_out", .lane = {Lane::kIssue, r}, .reads = {rank.loss}, .step_result = true, .cost = {.fixed_seconds = 1e-5}});
    }
    for (int l = size_.layers - 1; l >= 0; --l) backward(l);
    return std::move(builder_).build();
  }

 private:
  struct Rank {
    std::vector<BufferId> windows, gradients, slots, cached, state, boundaries;
    std::vector<ShardId> shards;
    BufferId activation, staged, hidden, received, output, combined, gradient_in, loss;
  };

  Rank make_rank(int r) {
    Rank rank;
    const auto device = [&](std::string name, int64_t bytes, BufferClass c, Lifetime lifetime = Lifetime::kPersistent) {
      return builder_.add_buffer({.name = cat(name, " of rank ", r), .place = Place::gpu(r), .bytes = bytes, .buffer_class = c, .lifetime = lifetime});
    };
    const auto host = [&](std::string name, int64_t bytes, BufferClass c) {
      return builder_.add_buffer({.name = cat(name, " of rank ", r), .place = Place::numa(0), .bytes = bytes, .buffer_class = c});
    };
    for (int w = 0; w < size_.windows; ++w) rank.windows.push_back(device(cat("window ", w), weight_bytes_, BufferClass::kWorkingWeight));
    for (int g = 0; g < size_.slots; ++g) {
      rank.gradients.push_back(device(cat("gradient ", g), weight_bytes_, BufferClass::kGradient));
      rank.slots.push_back(host(cat("gradient slot ", g), weight_bytes_, BufferClass::kGradient));
    }
    for (int l = 0; l < size_.layers; ++l) {
      rank.cached.push_back(host(cat("weights of layer ", l), weight_bytes_, BufferClass::kWorkingWeight));
      rank.state.push_back(host(cat("state of layer ", l), 6 * weight_bytes_, BufferClass::kState));
      rank.boundaries.push_back(host(cat("boundary of layer ", l), size_.boundary_bytes, BufferClass::kBoundary));
      rank.shards.push_back(builder_.add_shard(cat("experts of layer ", l, " rank ", r), l, r));
    }
    const int64_t b = size_.boundary_bytes;
    rank.activation = device("activation", b, BufferClass::kBoundary, Lifetime::kTransient);
    rank.staged = device("boundary staging", b, BufferClass::kStaging);
    rank.hidden = device("hidden", b, BufferClass::kStaging);
    rank.received = device("received", b, BufferClass::kStaging);
    rank.output = device("expert output", b, BufferClass::kStaging);
    rank.combined = device("combined", b, BufferClass::kStaging);
    rank.gradient_in = device("activation gradient", b, BufferClass::kBoundary, Lifetime::kTransient);
    rank.loss = device("loss", 8, BufferClass::kResult);
    return rank;
  }

  void exchange(const char* kind, int l, BufferId Rank::*from, BufferId Rank::*to) {
    std::vector<int32_t> all;
    for (int r = 0; r < size_.ranks; ++r) all.push_back(r);
    const CollectiveId id = builder_.add_collective("ep", all);
    for (int r : all) {
      builder_.emit({.kind = kind, .layer = l, .lane = {Lane::kComm, r}, .reads = {ranks_[r].*from}, .writes = {ranks_[r].*to}, .collective = id,
                     .cost = {.fixed_seconds = 2e-5, .peer_bytes = static_cast<double>(size_.boundary_bytes)}});
    }
  }

  void weights_in(int l, int r, int use) {
    const double n = size_.weight_bytes;
    builder_.emit({.kind = "weights_in", .layer = l, .lane = {Lane::kH2d, r}, .reads = {ranks_[r].cached[l]},
                   .writes = {ranks_[r].windows[use % size_.windows]}, .cost = {.host_bytes = {n}, .h2d_bytes = n, .bytes = n}});
  }

  void forward(int l) {
    for (int r = 0; r < size_.ranks; ++r) {
      Rank& rank = ranks_[r];
      weights_in(l, r, l);
      if (l == 0) builder_.emit({.kind = "embed", .lane = {Lane::kCompute, r}, .writes = {rank.activation}, .cost = {.fixed_seconds = 1e-4}});
      builder_.emit({.kind = "boundary_copy", .layer = l, .lane = {Lane::kCompute, r}, .reads = {rank.activation}, .writes = {rank.staged},
                     .cost = {.fixed_seconds = 1e-5}});
      builder_.emit({.kind = "boundary_out", .layer = l, .lane = {Lane::kD2h, r}, .reads = {rank.staged}, .writes = {rank.boundaries[l]},
                     .cost = {.host_bytes = {boundary()}, .d2h_bytes = boundary()}});
      builder_.emit({.kind = "attention_forward", .layer = l, .lane = {Lane::kCompute, r}, .reads = {rank.activation}, .writes = {rank.hidden},
                     .cost = {.attention_flops = 0.3 * size_.layer_flops, .workspace_bytes = 2 * size_.boundary_bytes}});
    }
    exchange("dispatch", l, &Rank::hidden, &Rank::received);
    for (int r = 0; r < size_.ranks; ++r) {
      Rank& rank = ranks_[r];
      builder_.emit({.kind = "experts_forward", .layer = l, .lane = {Lane::kCompute, r}, .reads = {rank.windows[l % size_.windows], rank.received},
                     .writes = {rank.output}, .cost = {.gemm_flops = size_.layer_flops, .workspace_bytes = 4 * size_.boundary_bytes}});
    }
    exchange("combine", l, &Rank::output, &Rank::combined);
    for (int r = 0; r < size_.ranks; ++r) {
      builder_.emit({.kind = "residual", .layer = l, .lane = {Lane::kCompute, r}, .reads = {ranks_[r].combined}, .updates = {ranks_[r].activation},
                     .cost = {.hbm_bytes = 3 * boundary()}});
    }
  }

  void backward(int l) {
    const int use = 2 * size_.layers - 1 - l;  // deliveries go on counting, so that windows alternate
    for (int r = 0; r < size_.ranks; ++r) {
      Rank& rank = ranks_[r];
      builder_.emit({.kind = "boundary_in", .layer = l, .lane = {Lane::kH2d, r}, .reads = {rank.boundaries[l]}, .writes = {rank.staged},
                     .cost = {.host_bytes = {boundary()}, .h2d_bytes = boundary()}});
      weights_in(l, r, use);
      builder_.emit({.kind = "attention_replay", .layer = l, .lane = {Lane::kCompute, r}, .reads = {rank.staged, rank.gradient_in},
                     .writes = {rank.hidden}, .cost = {.attention_flops = 0.6 * size_.layer_flops}});
    }
    exchange("dispatch_backward", l, &Rank::hidden, &Rank::received);
    for (int r = 0; r < size_.ranks; ++r) {
      Rank& rank = ranks_[r];
      builder_.emit({.kind = "experts_backward", .layer = l, .lane = {Lane::kCompute, r}, .reads = {rank.windows[use % size_.windows], rank.received},
                     .writes = {rank.output, rank.gradients[l % size_.slots]}, .cost = {.gemm_flops = 3 * size_.layer_flops}});
      const double n = size_.weight_bytes;
      builder_.emit({.kind = "gradient_out", .layer = l, .lane = {Lane::kD2hExpert, r}, .reads = {rank.gradients[l % size_.slots]},
                     .writes = {rank.slots[l % size_.slots]}, .cost = {.host_bytes = {n}, .d2h_bytes = n, .bytes = n}});
      builder_.emit({.kind = "update", .layer = l, .rank = r, .lane = {Lane::kUpdate, 0}, .reads = {rank.slots[l % size_.slots]},
                     .writes = {rank.cached[l]}, .updates = {rank.state[l]}, .updates_shard = rank.shards[l],
                     .cost = {.host_bytes = {14 * n}, .update_parameters = n / 2, .parameters = n / 2}});
    }
    exchange("combine_backward", l, &Rank::output, &Rank::combined);
    for (int r = 0; r < size_.ranks; ++r) {
      builder_.emit({.kind = "residual_backward", .layer = l, .lane = {Lane::kCompute, r}, .reads = {ranks_[r].combined},
                     .updates = {ranks_[r].gradient_in}, .cost = {.hbm_bytes = 3 * boundary()}});
    }
  }
  double boundary() const { return static_cast<double>(size_.boundary_bytes); }

  PipelineSize size_;
  ProgramBuilder builder_;
  int64_t weight_bytes_ = 0;
  std::vector<Rank> ranks_;
};

}  // namespace

BuiltProgram pipeline_program(PipelineSize size) { return Pipeline(size).run(); }

}  // namespace oom::program
