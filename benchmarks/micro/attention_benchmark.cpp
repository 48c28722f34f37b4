// Attention forward and backward on the current CUDA device: time, TFLOP/s of the products that a causal mask leaves, and scratch measured beside
// attention_workspace_bytes. Arguments: head dimension, query heads, key/value heads, tokens, window (0: none). Two backwards that repeat bit for bit stand beside
// the usual one: that of engine.deterministic, and FlashAttention-2 as LibTorch's deterministic mode has it.
#include <ATen/Context.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <benchmark/benchmark.h>
#include <c10/core/InferenceMode.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime.h>

#include <cmath>
#include <optional>

#include "oom/ops/attention.h"
#include "oom/ops/linear.h"

namespace oom::ops {
namespace {

int64_t allocated_bytes(bool peak) {
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(0).allocated_bytes[0];
  return peak ? stats.peak : stats.current;
}

void attend(benchmark::State& run, bool backward, std::optional<AttentionBackend> deterministic = std::nullopt) {
  if (!at::globalContext().hasCUDA()) return run.SkipWithError("no CUDA device");
  if (deterministic == AttentionBackend::kFlash2 && run.range(0) > 256) return run.SkipWithError("heads above 256");
  const c10::InferenceMode inference;
  configure_math();
  set_deterministic_attention(deterministic.has_value());
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  at::globalContext().setDeterministicAlgorithms(deterministic.has_value(), /*warn_only=*/false);
  const int64_t dim = run.range(0), query_heads = run.range(1), kv_heads = run.range(2), tokens = run.range(3), window = run.range(4);
  const at::TensorOptions bf16 = at::TensorOptions().device(c10::Device(c10::kCUDA, 0)).dtype(at::kBFloat16);
  const at::Tensor q = at::randn({1, tokens, query_heads, dim}, bf16), dout = at::randn_like(q);
  const at::Tensor k = at::randn({1, tokens, kv_heads, dim}, bf16), v = at::randn_like(k);
  AttentionOptions options{.scale = 1 / std::sqrt(static_cast<double>(dim)), .window_tokens = window};
  const AttentionForward forward = attention_forward(q, k, v, options);
  options.backend = deterministic;
  const AttentionProblem problem{.tokens = tokens, .query_heads = query_heads, .kv_heads = kv_heads, .head_dim = dim, .window_tokens = window, .deterministic = deterministic.has_value()};
  const auto once = [&] {
    if (backward)
      attention_backward(dout, q, k, v, forward.out, forward.lse, options);
    else
      attention_forward(q, k, v, options);
  };
  once();
  const int64_t before = allocated_bytes(false);
  c10::cuda::CUDACachingAllocator::resetPeakStats(0);
  once();
  const int64_t results = (backward ? q.nbytes() + 2 * k.nbytes() : q.nbytes() + forward.lse.nbytes());
  run.counters["scratch_MiB"] = static_cast<double>(allocated_bytes(true) - before - static_cast<int64_t>(results)) / (1 << 20);
  run.counters["expected_MiB"] = static_cast<double>(attention_workspace_bytes(problem, backward)) / (1 << 20);
  cudaDeviceSynchronize();
  for (auto _ : run) {
    once();
    cudaDeviceSynchronize();
  }
  const double width = static_cast<double>(window > 0 ? std::min(window, tokens) : tokens), length = static_cast<double>(tokens);
  const double pairs = width * (length - width) + width * (width + 1) / 2;
  const double flops = (backward ? 10.0 : 4.0) * pairs * static_cast<double>(dim * query_heads);
  run.counters["TFLOP/s"] = benchmark::Counter(flops * static_cast<double>(run.iterations()) / 1e12, benchmark::Counter::kIsRate);
  run.SetLabel(std::string(name_of(deterministic.value_or(choose_attention_backend(problem)))));
}

void shapes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"D", "Hq", "Hk", "S", "W"})->Unit(benchmark::kMillisecond)->UseRealTime();
  for (const int64_t tokens : {4096, 32768}) {
    benchmark->Args({128, 32, 4, tokens, 0});     // Qwen3-30B-A3B
    benchmark->Args({256, 16, 2, tokens, 0});     // Qwen3.6-35B-A3B
    benchmark->Args({256, 16, 8, tokens, 1024});  // Gemma4-26B-A4B, sliding layers
    benchmark->Args({512, 16, 2, tokens, 0});     // Gemma4-26B-A4B, full layers
  }
}

BENCHMARK_CAPTURE(attend, forward, false)->Apply(shapes);
BENCHMARK_CAPTURE(attend, backward, true)->Apply(shapes);
BENCHMARK_CAPTURE(attend, deterministic_backward, true, AttentionBackend::kTiled)->Apply(shapes);
BENCHMARK_CAPTURE(attend, deterministic_flash2_backward, true, AttentionBackend::kFlash2)->Apply(shapes);

}  // namespace
}  // namespace oom::ops

BENCHMARK_MAIN();
