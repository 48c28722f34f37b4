// The gated delta rule's kernels on one GPU: time, bytes and products a second of each, beside what memory and tensor cores could do.
//   delta_rule_benchmark [TOKENS [KEY_HEADS VALUE_HEADS [DOCUMENTS]]]
// Bytes are those that must move once (operands of a key head count once for all its value heads), products those that the kernel issues. The bounds take
// the device's memory clock and bus, and the BF16 rate that mma.sync can reach: 1024 multiply-adds a cycle and multiprocessor on sm_80, and 2048 on sm_90,
// of which mma.sync is known to reach about five eighths.
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "ops/delta_rule/kernels.h"
#include "ops/delta_rule/start.cuh"

namespace oom::ops {
namespace {

using namespace delta_rule;

void require(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(5);
}

template <typename Value>
Value* allocate(int64_t count) {
  void* data = nullptr;
  require(cudaMalloc(&data, static_cast<size_t>(count) * sizeof(Value)), "memory");
  return static_cast<Value*>(data);
}

/// Values of one size, signs and all: what products and triangles of unit keys need to stay finite.
__global__ void fill_kernel(BFloat16* data, int64_t count, float size) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    uint32_t x = static_cast<uint32_t>(i) * 2654435761u;
    x ^= x >> 15, x *= 2246822519u, x ^= x >> 13;
    data[i] = __float2bfloat16_rn(x & 1 ? size : -size);
  }
}
__global__ void fill_kernel(float* data, int64_t count, float low, float high) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x)
    data[i] = low + (high - low) * static_cast<float>(static_cast<uint32_t>(i) * 2654435761u >> 8) / 16777216.0f;
}

BFloat16* halves(int64_t count, float size) {
  BFloat16* data = allocate<BFloat16>(count);
  fill_kernel<<<1024, 256>>>(data, count, size);
  return data;
}

float milliseconds(const std::function<void()>& work) {
  constexpr int kRepeats = 20;
  cudaEvent_t begin, end;
  require(cudaEventCreate(&begin), "event");
  require(cudaEventCreate(&end), "event");
  for (int i = 0; i < 3; ++i) work();
  require(cudaEventRecord(begin), "event");
  for (int i = 0; i < kRepeats; ++i) work();
  require(cudaEventRecord(end), "event");
  require(cudaEventSynchronize(end), "kernels");
  float time = 0;
  require(cudaEventElapsedTime(&time, begin, end), "event");
  return time / kRepeats;
}

int run(int64_t tokens, int64_t key_heads, int64_t value_heads, int64_t documents) {
  int device = 0, processors = 0, clock_khz = 0, memory_khz = 0, bus_bits = 0, major = 0;
  require(cudaGetDevice(&device), "no CUDA device");
  for (const auto& [value, attribute] : {std::pair{&processors, cudaDevAttrMultiProcessorCount}, {&clock_khz, cudaDevAttrClockRate},
                                         {&memory_khz, cudaDevAttrMemoryClockRate}, {&bus_bits, cudaDevAttrGlobalMemoryBusWidth},
                                         {&major, cudaDevAttrComputeCapabilityMajor}})
    require(cudaDeviceGetAttribute(value, attribute, device), "device");
  cudaDeviceProp properties;
  require(cudaGetDeviceProperties(&properties, device), "device");
  const double memory_rate = 2e3 * memory_khz * bus_bits / 8, tensor_rate = 2e3 * clock_khz * processors * (major >= 9 ? 2048 : 1024);

  const float unit = 0.08838835f;  // 128^-1/2
  DeltaRuleShape shape{.tokens = tokens, .sequences = documents, .segments = documents, .key_heads = key_heads, .value_heads = value_heads, .scale = unit};
  const int64_t row = (2 * key_heads + value_heads) * kDim, values = tokens * value_heads;
  BFloat16 *inputs = halves(tokens * row, unit), *gradients = halves(tokens * row, 0), *out = halves(values * kDim, 0), *dout = halves(values * kDim, 1);
  float *log_decay = allocate<float>(values), *beta = allocate<float>(values), *d_log_decay = allocate<float>(values), *d_beta = allocate<float>(values);
  fill_kernel<<<1024, 256>>>(log_decay, values, -0.02f, 0.0f);
  fill_kernel<<<1024, 256>>>(beta, values, 0.1f, 0.9f);
  const auto part = [&](BFloat16* all, int64_t heads) { return TokenRows{all + heads * kDim, row}; };
  DeltaRuleOperands in{.shape = shape, .q = part(inputs, 0), .k = part(inputs, key_heads), .v = part(inputs, 2 * key_heads), .log_decay = log_decay,
                       .beta = beta};
  DeltaRuleForwardLaunch forward{.in = in, .out = out, .workspace = allocate<unsigned char>(delta_rule_workspace_bytes_cuda(shape, false))};
  DeltaRuleBackwardLaunch backward{.in = in, .dout = dout, .dq = part(gradients, 0), .dk = part(gradients, key_heads), .dv = part(gradients, 2 * key_heads),
                                   .d_log_decay = d_log_decay, .d_beta = d_beta,
                                   .workspace = allocate<unsigned char>(delta_rule_workspace_bytes_cuda(shape, true))};
  std::printf("%s: %lld tokens in %lld documents, %lld key and %lld value heads of %d\n", properties.name, static_cast<long long>(tokens),
              static_cast<long long>(documents), static_cast<long long>(key_heads), static_cast<long long>(value_heads), kDim);
  std::printf("forward %.3f ms, workspace %.2f GiB; backward %.3f ms, workspace %.2f GiB\n",
              milliseconds([&] { delta_rule_forward_cuda(forward, nullptr); }), static_cast<double>(delta_rule_workspace_bytes_cuda(shape, false)) / (1 << 30),
              milliseconds([&] { delta_rule_backward_cuda(backward, nullptr); }), static_cast<double>(delta_rule_workspace_bytes_cuda(shape, true)) / (1 << 30));

  const int64_t tiles_a_document = (tokens / documents + kTokens - 1) / kTokens, tiles = tiles_a_document * documents, slots = tiles * value_heads;
  constexpr int64_t kSquare = kTokens * kTokens, kRows = kTokens * kDim, kState = kDim * kDim;
  Pass pass{.in = in, .segments = allocate<SegmentSpan>(documents), .tiles = allocate<TileSpan>(tiles), .tile_end = static_cast<int>(tiles),
            .segment_count = static_cast<int>(documents)};
  pass.slots = {allocate<float>(slots * 4 * kTokens), halves(slots * kSquare, 0), halves(slots * kSquare, 0), halves(slots * kState, 0),
                halves(slots * kRows, 0), halves(slots * kState, 0), halves(slots * kRows, 0)};
  find_tiles(in, const_cast<SegmentSpan*>(pass.segments), const_cast<TileSpan*>(pass.tiles), static_cast<int>(tiles), nullptr);

  struct Line {
    const char* name;
    std::function<void()> work;
    int64_t key_bytes, value_bytes;        ///< a tile and key head, a tile and value head
    double key_products, value_products;  ///< multiply-adds
  };
  constexpr int64_t kGateBytes = 4 * kTokens * 4;
  constexpr double kLower = 0.625;  // of a square's 16 x 16 blocks lie on or below the diagonal
  constexpr double kPair = kSquare * kDim, kWhole = kRows * kDim;
  const std::vector<Line> lines = {
      {"prepare", [&] { prepare(pass, nullptr); }, 4 * kRows, kTokens * 8 + kGateBytes + 4 * kSquare, 2 * kLower * kPair, 0},
      {"scan for output", [&] { scan(pass, Keep::kForOutput, {}, nullptr, nullptr); }, 2 * kRows, 2 * kSquare + 4 * kRows + 2 * kState + kGateBytes, 0,
       2 * kWhole + kLower * kPair},
      {"output", [&] { write_output(pass, out, nullptr); }, 2 * kRows, 2 * kSquare + 4 * kRows + 2 * kState + kGateBytes, 0, kWhole + 0.75 * kPair},
      {"scan for gradient", [&] { scan(pass, Keep::kForGradient, {}, nullptr, nullptr); }, 2 * kRows, 2 * kSquare + 4 * kRows + 2 * kState + kGateBytes, 0,
       2 * kWhole + kLower * kPair},
      {"reverse scan", [&] { reverse_scan(pass, backward, {}, nullptr); }, 4 * kRows, 4 * kSquare + 4 * kRows + 2 * kState + kGateBytes, 0,
       3 * kWhole + 2 * kLower * kPair},
      {"gradient", [&] { write_gradients(pass, backward, nullptr); }, 8 * kRows, 8 * kRows + 4 * kState + kGateBytes + kTokens * 8, 2 * kPair,
       3 * kWhole + (2 + 4 * kLower) * kPair}};
  std::printf("memory %.2f TB/s, tensor cores %.0f TFLOP/s (mma.sync reaches about %.0f)\n", memory_rate / 1e12, tensor_rate / 1e12, 0.625 * tensor_rate / 1e12);
  std::printf("%-18s %9s %9s %7s %9s %7s %10s\n", "kernel", "ms", "GB/s", "of mem", "TFLOP/s", "of mma", "bound, ms");
  for (const Line& line : lines) {
    const double bytes = static_cast<double>(tiles) * static_cast<double>(key_heads * line.key_bytes + value_heads * line.value_bytes);
    const double operations = 2.0 * static_cast<double>(tiles) * (static_cast<double>(key_heads) * line.key_products + static_cast<double>(value_heads) * line.value_products);
    const double time = milliseconds(line.work) / 1e3, by_memory = bytes / memory_rate, by_products = operations / (0.625 * tensor_rate);
    std::printf("%-18s %9.3f %9.0f %6.0f%% %9.1f %6.0f%% %7.3f %s\n", line.name, time * 1e3, bytes / time / 1e9, 100 * by_memory / time,
                operations / time / 1e12, 100 * by_products / time, 1e3 * std::max(by_memory, by_products), by_memory > by_products ? "mem" : "mma");
  }
  return 0;
}

}  // namespace
}  // namespace oom::ops

int main(int count, char** words) {
  const auto word = [&](int i, int64_t otherwise) { return count > i ? std::atoll(words[i]) : otherwise; };
  const int64_t tokens = word(1, 32768), key_heads = word(2, 16), value_heads = word(3, 32), documents = word(4, 1);
  if (tokens < 1 || key_heads < 1 || value_heads < 1 || documents < 1 || value_heads % key_heads != 0 || tokens % documents != 0) {
    std::fprintf(stderr, "delta_rule_benchmark [TOKENS [KEY_HEADS VALUE_HEADS [DOCUMENTS]]]: value heads are a multiple of the key heads, tokens one of the documents\n");
    return 2;
  }
  try {
    return oom::ops::run(tokens, key_heads, value_heads, documents);
  } catch (const oom::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.exit_code());
  }
}
