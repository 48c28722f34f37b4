#include "ops/column_sum.cuh"
#include "ops/delta_rule_gates_cuda.h"
#include "ops/vector.cuh"

namespace oom::ops {
namespace {

constexpr int kHeadLanes = 32;
constexpr int kTokenLanes = 8;

template <typename T>
__global__ void gates_forward_kernel(GateForward g) {
  const int64_t heads = g.a.width, index = blockIdx.x * int64_t{256} + threadIdx.x;
  if (index >= g.a.count * heads) return;
  const int64_t t = index / heads, h = index % heads;
  const float rate = -expf(read(g.a_log.data, g.a_log.element, h));
  g.log_decay[index] = rate * softplus(to_float(g.a.at<T>(t)[h]) + read(g.dt_bias.data, g.dt_bias.element, h));
  g.beta[index] = sigmoid(to_float(g.b.at<T>(t)[h]));
}

/// Block (x, y): kHeadLanes heads, and the tokens y * kTokenLanes, ... that are dealt to set y.
template <typename T>
__global__ void gates_backward_kernel(GateBackward g) {
  __shared__ float sums[2][kTokenLanes][kHeadLanes];
  const int64_t heads = g.a.width, h = blockIdx.x * int64_t{kHeadLanes} + threadIdx.x;
  float sum_a_log = 0, sum_dt_bias = 0;
  if (h < heads) {
    const float a_log = read(g.a_log.data, g.a_log.element, h), dt_bias = read(g.dt_bias.data, g.dt_bias.element, h);
    for (int64_t t = blockIdx.y * int64_t{kTokenLanes} + threadIdx.y; t < g.a.count; t += gridDim.y * int64_t{kTokenLanes}) {
      const GateGradient one = gate_gradient(g.d_log_decay[t * heads + h], g.d_beta[t * heads + h], to_float(g.a.at<T>(t)[h]), to_float(g.b.at<T>(t)[h]),
                                             a_log, dt_bias);
      g.da.at<T>(t)[h] = from_float<T>(one.a);
      g.db.at<T>(t)[h] = from_float<T>(one.b);
      sum_a_log += one.a_log;
      sum_dt_bias += one.dt_bias;
    }
  }
  if (g.partials == nullptr) return;
  sums[0][threadIdx.y][threadIdx.x] = sum_a_log;
  sums[1][threadIdx.y][threadIdx.x] = sum_dt_bias;
  __syncthreads();
  if (threadIdx.y >= 2 || h >= heads) return;
  float sum = 0;
  for (int lane = 0; lane < kTokenLanes; ++lane) sum += sums[threadIdx.y][lane][threadIdx.x];
  g.partials[(blockIdx.y * int64_t{2} + threadIdx.y) * heads + h] = sum;
}

/// Columns are A_log's heads, then dt_bias's.
struct GateFinish {
  Sink a_log, dt_bias;
  int64_t heads;
  __device__ void operator()(int64_t column, float sum) const {
    const Sink& sink = column < heads ? a_log : dt_bias;
    if (sink.data != nullptr) add_to(sink, column % heads, sum);
  }
};

}  // namespace

void delta_rule_gates_forward_cuda(const GateForward& g, Stream stream) {
  with_device_type(g.a.element, [&](auto tag) { gates_forward_kernel<decltype(tag)><<<blocks_for(g.a.count * g.a.width, 256), 256, 0, stream>>>(g); });
  check_launch("delta_rule_gates_forward");
}

void delta_rule_gates_backward_cuda(const GateBackward& g, Stream stream) {
  const int64_t sets = gate_partial_count(g.a.count);
  with_device_type(g.a.element, [&](auto tag) {
    const dim3 grid(blocks_for(g.a.width, kHeadLanes), static_cast<unsigned int>(sets));
    gates_backward_kernel<decltype(tag)><<<grid, dim3(kHeadLanes, kTokenLanes), 0, stream>>>(g);
  });
  check_launch("delta_rule_gates_backward");
  if (g.partials != nullptr) column_sum<float>(g.partials, sets, 2 * g.a.width, GateFinish{g.a_log_sink, g.dt_bias_sink, g.a.width}, stream);
}

}  // namespace oom::ops
