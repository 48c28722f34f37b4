/// What a test chooses of the emulated CUDA device (emulated_cuda.h).
#pragma once

namespace oom::emulated_cuda {

enum class Order : int { kForwards, kBackwards };

struct Device {
  Order order = Order::kForwards;
  int shared_bytes_limit = 227 << 10;
};
Device& device();

}  // namespace oom::emulated_cuda
