#include "runtime/gpu_clock.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "runtime/cuda_temporaries.h"

namespace oom::runtime {

std::vector<ClockPoint> measure_gpu_clock(int gpu) {
  install_cuda_temporaries();  // LibTorch's allocator would be in use by the first run otherwise
  constexpr double kShares[] = {0.25, 0.5, 0.75, 0.9, 1};
  constexpr double kBlock = 0.02, kSeconds = 1;
  const auto options = at::TensorOptions().device(at::kCUDA, static_cast<c10::DeviceIndex>(gpu)).dtype(at::kBFloat16);
  const at::Tensor a = at::randn({8192, 4096}, options), b = at::randn({4096, 4096}, options);
  at::Tensor product = at::mm(a, b);
  const auto now = [] { return std::chrono::steady_clock::now(); };
  const auto since = [&](auto start) { return std::chrono::duration<double>(now() - start).count(); };
  const auto block_seconds = [&](int products) {
    const auto start = now();
    for (int i = 0; i < products; ++i) at::mm_out(product, a, b);
    (void)product[0][0].item();  // waits for the GPU
    return since(start);
  };
  (void)block_seconds(20);
  const int products = std::max(1, static_cast<int>(kBlock / (block_seconds(20) / 20)));
  std::vector<ClockPoint> clock;
  for (double share : kShares) {
    double seconds = 0;
    int blocks = 0;
    for (const auto start = now(); since(start) < kSeconds;) {
      const bool settled = since(start) > kSeconds / 2;
      const double block = block_seconds(products);
      if (settled) seconds += block, ++blocks;
      std::this_thread::sleep_for(std::chrono::duration<double>(block * (1 / share - 1)));
    }
    clock.push_back({share, seconds / blocks});
  }
  const double always = clock.back().seconds;
  for (ClockPoint& point : clock) point.seconds /= always;
  return clock;
}

}  // namespace oom::runtime
