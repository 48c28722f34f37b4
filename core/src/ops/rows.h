/// From tensors to what kernels see, and where they run.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/BFloat16.h>

#include "oom/error.h"
#include "oom/ops/gradient_sink.h"
#include "ops/element.h"

namespace oom::ops {

#if OOM_WITH_CUDA
constexpr bool kWithCuda = true;
#else
constexpr bool kWithCuda = false;
#endif

/// Returns whether `tensor` lies on a CUDA device; raises for any device that this build cannot serve.
bool on_cuda(const at::Tensor& tensor);
/// Returns the current stream, having checked that `tensor` lies on the current device.
Stream current_stream(const at::Tensor& tensor);

Element element_of(const at::Tensor& tensor);
/// Returns `tensor` as rows of its last dimension; an undefined one as missing. Raises when the leading dimensions need more than two strides.
Rows rows_of(const at::Tensor& tensor);
Array array_of(const at::Tensor& tensor);
/// Returns the sink's view; its tensor must be contiguous with `elements` elements, or undefined.
Sink sink_of(const GradientSink& sink, int64_t elements);

/// Raises unless `tensor` is a contiguous tensor of that type on `like`'s device.
void require_contiguous(const at::Tensor& tensor, at::ScalarType type, const at::Tensor& like, const char* name);
/// Raises unless both have the same sizes, type and device.
void require_alike(const at::Tensor& tensor, const at::Tensor& like, const char* name);

/// A contiguous uninitialised tensor on `like`'s device.
at::Tensor empty_on(const at::Tensor& like, at::IntArrayRef sizes, at::ScalarType type);
inline at::Tensor empty_as(const at::Tensor& like) { return empty_on(like, like.sizes(), like.scalar_type()); }

/// Calls `body` with a value of the element's CPU type; only its type matters.
template <typename Body>
void with_type(Element element, Body&& body) {
  if (element == Element::kFloat32)
    body(float{});
  else
    body(c10::BFloat16{});
}

/// Rounds to T and back.
template <typename T>
float rounded(float value) {
  return static_cast<float>(static_cast<T>(value));
}

/// Reads one element of either type.
inline float read(const void* data, Element element, int64_t index) {
  return element == Element::kFloat32 ? static_cast<const float*>(data)[index] : static_cast<float>(static_cast<const c10::BFloat16*>(data)[index]);
}
inline void write(void* data, Element element, int64_t index, float value) {
  if (element == Element::kFloat32)
    static_cast<float*>(data)[index] = value;
  else
    static_cast<c10::BFloat16*>(data)[index] = static_cast<c10::BFloat16>(value);
}
inline void add_to(const Sink& sink, int64_t index, float value) {
  write(sink.data, sink.element, index, sink.accumulate ? read(sink.data, sink.element, index) + value : value);
}

/// Rows a thread should take at least, so that starting it pays.
inline int64_t grain_rows(int64_t width) { return width >= 16384 ? 1 : 16384 / (width > 0 ? width : 1) + 1; }

}  // namespace oom::ops
