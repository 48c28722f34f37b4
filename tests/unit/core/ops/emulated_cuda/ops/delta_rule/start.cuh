/// The launch of a kernel on the emulated device.
#pragma once

#include <stdexcept>
#include <type_traits>

#include "ops/vector.cuh"

namespace oom::ops::delta_rule {

inline int shared_bytes_limit() { return emulated_cuda::device().shared_bytes_limit; }

template <typename... Arguments>
void start(void (*kernel)(Arguments...), const char* name, dim3 grid, int threads, int shared_bytes, Stream,
           const std::type_identity_t<Arguments>&... arguments) {
  if (shared_bytes > shared_bytes_limit()) throw std::logic_error(cat(name, " wants ", shared_bytes, " bytes of shared memory"));
  emulated_cuda::launch(grid, threads, [&] { kernel(arguments...); });
}

}  // namespace oom::ops::delta_rule
