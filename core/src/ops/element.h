/// Element types and strided rows as kernels see them. No LibTorch here, so that CUDA sources compile fast.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define OOM_HOST_DEVICE __host__ __device__
#else
#define OOM_HOST_DEVICE
#endif

struct CUstream_st;

namespace oom::ops {

/// A CUDA stream; the same type as cudaStream_t.
using Stream = CUstream_st*;

enum class Element : int { kFloat32, kBFloat16 };

OOM_HOST_DEVICE inline int64_t bytes_of(Element element) { return element == Element::kFloat32 ? 4 : 2; }

/// Rows of a tensor whose last dimension is contiguous; two leading strides, so that heads inside a fused projection need no copy.
/// `data` is null where an optional tensor is missing.
struct Rows {
  void* data = nullptr;
  Element element = Element::kFloat32;
  int64_t count = 0;
  int64_t width = 0;
  int64_t inner = 1;         ///< rows that share an outer stride
  int64_t outer_stride = 0;  ///< elements
  int64_t inner_stride = 0;  ///< elements

  OOM_HOST_DEVICE int64_t offset(int64_t row) const {
    return inner == 1 ? row * outer_stride : row / inner * outer_stride + row % inner * inner_stride;
  }
  template <typename T>
  OOM_HOST_DEVICE T* at(int64_t row) const {
    return static_cast<T*>(data) + offset(row);
  }
};

/// A contiguous one-dimensional tensor, or a missing one.
struct Array {
  void* data = nullptr;
  Element element = Element::kFloat32;
  int64_t size = 0;
};

/// A GradientSink as kernels see it.
struct Sink {
  void* data = nullptr;
  Element element = Element::kFloat32;
  bool accumulate = false;
};

/// Elements that kernels move at once where every operand allows it.
constexpr int kVectorElements = 8;

/// Whether every row starts on a 16-byte boundary and holds whole vectors. Missing tensors do not object.
inline bool vectorizable(const Rows& rows) {
  if (rows.data == nullptr || rows.count == 0) return true;
  return reinterpret_cast<uintptr_t>(rows.data) % 16 == 0 && rows.width % kVectorElements == 0 && rows.outer_stride % kVectorElements == 0 &&
         rows.inner_stride % kVectorElements == 0;
}
inline bool vectorizable(const Array& array) {
  return array.data == nullptr || (reinterpret_cast<uintptr_t>(array.data) % 16 == 0 && array.size % kVectorElements == 0);
}

}  // namespace oom::ops
