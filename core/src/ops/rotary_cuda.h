/// Arguments of the rotary kernels, and their CUDA launches.
#pragma once

#include "ops/element.h"

namespace oom::ops {

struct RotaryTableFill {
  const int32_t* positions = nullptr;
  const float* inverse = nullptr;  ///< [half], on the host
  void* cosine = nullptr;
  void* sine = nullptr;
  Element element = Element::kFloat32;
  int64_t tokens = 0;
  int64_t half = 0;
  float scaling = 1;
};

struct Rotation {
  Rows x, y;  ///< a row is one head of one token
  const void* cosine = nullptr;
  const void* sine = nullptr;
  int64_t heads = 1;
  int64_t half = 0;
  bool inverse = false;
};

/// The frequencies travel with the launch: a copy from pageable memory would make the host wait for all that the stream has yet to do. Throws Error for more than kMostFrequencies.
inline constexpr int kMostFrequencies = 512;
void rotary_table_cuda(const RotaryTableFill& arguments, Stream stream);
void rotate_cuda(const Rotation& arguments, Stream stream);

}  // namespace oom::ops
