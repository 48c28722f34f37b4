#include "ops/rows.h"

#include <ATen/ops/empty.h>
#if OOM_WITH_CUDA
#include <c10/cuda/CUDAStream.h>
#endif

namespace oom::ops {

bool on_cuda(const at::Tensor& tensor) {
  if (tensor.device().is_cpu()) return false;
  OOM_CHECK(kWithCuda && tensor.device().is_cuda(), "this build has no operators for device ", tensor.device().str());
  return true;
}

Stream current_stream(const at::Tensor& tensor) {
#if OOM_WITH_CUDA
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream();
  OOM_CHECK_EQ(static_cast<int>(tensor.get_device()), static_cast<int>(stream.device_index()), "operand and current device differ");
  return stream.stream();
#else
  OOM_CHECK(false, "no stream on device ", tensor.device().str());
#endif
}

Element element_of(const at::Tensor& tensor) {
  OOM_CHECK(tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kBFloat16, "must be FP32 or BF16; got ",
            c10::toString(tensor.scalar_type()));
  return tensor.scalar_type() == at::kFloat ? Element::kFloat32 : Element::kBFloat16;
}

Rows rows_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  OOM_CHECK(tensor.dim() >= 1 && (tensor.stride(-1) == 1 || tensor.size(-1) <= 1), "the last dimension must be contiguous; sizes ", tensor.sizes(),
            " strides ", tensor.strides());
  Rows rows;
  rows.element = element_of(tensor);
  rows.width = tensor.size(-1);
  rows.count = 1;
  int levels = 0;
  // From the innermost leading dimension outwards, dimensions that continue each other merge into one level.
  int64_t level_size[2] = {1, 1};
  int64_t level_stride[2] = {0, 0};
  for (int64_t d = tensor.dim() - 2; d >= 0; --d) {
    const int64_t size = tensor.size(d);
    rows.count *= size;
    if (size <= 1) continue;
    if (levels > 0 && tensor.stride(d) == level_size[levels - 1] * level_stride[levels - 1]) {
      level_size[levels - 1] *= size;
      continue;
    }
    OOM_CHECK(levels < 2, "rows need more than two strides; sizes ", tensor.sizes(), " strides ", tensor.strides());
    level_size[levels] = size;
    level_stride[levels++] = tensor.stride(d);
  }
  if (levels == 2) {
    rows.inner = level_size[0];
    rows.inner_stride = level_stride[0];
    rows.outer_stride = level_stride[1];
  } else {
    rows.outer_stride = level_stride[0];
  }
  rows.data = tensor.numel() > 0 ? tensor.data_ptr() : nullptr;
  return rows;
}

Array array_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  OOM_CHECK(tensor.is_contiguous(), "must be contiguous; sizes ", tensor.sizes(), " strides ", tensor.strides());
  return {tensor.data_ptr(), element_of(tensor), tensor.numel()};
}

Sink sink_of(const GradientSink& sink, int64_t elements) {
  if (!sink.tensor.defined()) return {};
  OOM_CHECK(sink.tensor.is_contiguous() && sink.tensor.numel() == elements, "gradient sink of sizes ", sink.tensor.sizes(), ", needed are ", elements,
            " contiguous elements");
  return {sink.tensor.data_ptr(), element_of(sink.tensor), sink.accumulate};
}

void require_contiguous(const at::Tensor& tensor, at::ScalarType type, const at::Tensor& like, const char* name) {
  OOM_CHECK(tensor.defined() && tensor.is_contiguous() && tensor.scalar_type() == type && tensor.device() == like.device(), name,
            " must be contiguous, of type ", c10::toString(type), " on ", like.device().str());
}

void require_alike(const at::Tensor& tensor, const at::Tensor& like, const char* name) {
  OOM_CHECK(tensor.defined() && tensor.sizes() == like.sizes() && tensor.scalar_type() == like.scalar_type() && tensor.device() == like.device(), name,
            " must be ", like.sizes(), " of type ", c10::toString(like.scalar_type()), " on ", like.device().str());
}

at::Tensor empty_on(const at::Tensor& like, at::IntArrayRef sizes, at::ScalarType type) {
  return at::empty(sizes, at::TensorOptions().dtype(type).device(like.device()));
}

}  // namespace oom::ops
