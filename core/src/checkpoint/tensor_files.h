/// Spreads tensors over files of a bounded size, in order; a tensor larger than the bound gets a file of its own.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "checkpoint/safetensors_header.h"

namespace oom::checkpoint {

/// Returns for each file its tensors as [first, end) of `tensors`. No tensors: no files.
std::vector<std::pair<size_t, size_t>> spread_over_files(std::span<const TensorInfo> tensors, int64_t file_bytes);
/// Runs `work(i)` for i in 0..count-1 on up to `threads` threads and returns when all have ended. After a failure no further one is begun,
/// and the first is thrown.
void for_each_parallel(size_t count, int threads, const std::function<void(size_t)>& work);

}  // namespace oom::checkpoint
