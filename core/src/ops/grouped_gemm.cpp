#include "oom/ops/grouped_gemm.h"

#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <atomic>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "oom/log.h"
#include "ops/cpu_gemm_library.h"
#include "ops/current_device.h"
#if OOM_WITH_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include "ops/grouped_gemm_tiles.h"
#include "ops/grouped_tail.h"
#endif

namespace oom::ops {
namespace {

struct Shape {
  int64_t experts, n, k, rows;
};

void require_rows(const at::Tensor& rows, const at::Tensor& offsets, int64_t experts) {
  OOM_CHECK(rows.dim() == 2 && rows.is_contiguous(), "rows of a grouped product are a contiguous matrix; got ", rows.sizes());
  OOM_CHECK(offsets.dim() == 1 && offsets.scalar_type() == at::kInt && offsets.is_contiguous(), "offsets are int32 [experts]; got ",
            c10::toString(offsets.scalar_type()), " ", offsets.sizes());
  OOM_CHECK_EQ(offsets.size(0), experts, "one offset an expert");
  OOM_CHECK(offsets.device() == rows.device(), "offsets on ", offsets.device().str(), ", rows on ", rows.device().str());
  OOM_CHECK_LT(rows.size(0), int64_t{1} << 31, "offsets are int32");
}

/// OOM_GROUPED_GEMM=tiles keeps off LibTorch's kernel: for comparing the two on one GPU.
GroupedGemmBackend wanted_backend() {
  const char* wanted = std::getenv("OOM_GROUPED_GEMM");
  return wanted != nullptr && std::string_view(wanted) == "tiles" ? GroupedGemmBackend::kTensorCoreTiles : GroupedGemmBackend::kGroupedKernel;
}

GroupedGemmBackend backend_for(const at::Tensor& rows, const Shape& shape) {
  const GroupedGemmProblem problem{.device = rows.device().type(),
                                   .dtype = rows.scalar_type(),
                                   .compute_capability = compute_capability_of(rows),
                                   .experts = shape.experts,
                                   .n = shape.n,
                                   .k = shape.k};
  const GroupedGemmBackend backend = choose_grouped_gemm_backend(problem, wanted_backend());
  static std::atomic<unsigned> told{0};
  const unsigned bit = 1u << static_cast<unsigned>(backend);
  if (!(told.fetch_or(bit) & bit)) {
    if (backend == GroupedGemmBackend::kLoopOverExperts)
      log_warn("grouped_gemm: no grouped kernel for ", c10::toString(rows.scalar_type()), " [E,", shape.n, ",", shape.k, "] on sm_",
               problem.compute_capability, "; experts are multiplied one after another, with a host synchronisation a call");
    else
      log_debug("grouped_gemm: ", name_of(backend));
  }
  return backend;
}

std::vector<int64_t> host_ends(const at::Tensor& offsets, int64_t rows) {
  const at::Tensor host = offsets.cpu();
  const int32_t* values = host.const_data_ptr<int32_t>();
  std::vector<int64_t> ends(values, values + host.numel());
  int64_t before = 0;
  for (size_t expert = 0; expert < ends.size(); ++expert) {
    OOM_CHECK(ends[expert] >= before && ends[expert] <= rows, "offsets[", expert, "] = ", ends[expert], " after ", before, " with ", rows, " rows");
    before = ends[expert];
  }
  return ends;
}

/// Calls visit(expert, first row, row count) for every expert.
template <typename Visit>
void for_each_expert(const std::vector<int64_t>& ends, const Visit& visit) {
  int64_t begin = 0;
  for (size_t expert = 0; expert < ends.size(); ++expert) {
    visit(static_cast<int64_t>(expert), begin, ends[expert] - begin);
    begin = ends[expert];
  }
}

void multiply_rows(const at::Tensor& out, const at::Tensor& rows, const at::Tensor& matrix) {
  if (rows.device().is_cpu()) {
    cpu_gemm(out, rows, matrix, false, VaryingDimension::kM);
  } else {
    at::Tensor target = out;
    at::mm_out(target, rows, matrix);
  }
}

#if OOM_WITH_CUDA
ExpertRows expert_rows(const at::Tensor& offsets, int64_t rows) { return {offsets.const_data_ptr<int32_t>(), static_cast<int>(offsets.size(0)), rows}; }
#endif

/// out [R, matrices' last dimension] = rows times each expert's matrix.
at::Tensor multiply_by_expert(const at::Tensor& rows, const at::Tensor& matrices, const at::Tensor& offsets, GroupedGemmBackend backend) {
  const int64_t count = rows.size(0);
  if (count == 0 || matrices.size(0) == 0) return at::zeros({count, matrices.size(2)}, rows.options());
#if OOM_WITH_CUDA
  if (backend == GroupedGemmBackend::kGroupedKernel) {
    at::Tensor out = at::_grouped_mm(rows, matrices, offsets);
    zero_tail_rows(out.mutable_data_ptr(), count, out.size(1) * out.element_size(), offsets.const_data_ptr<int32_t>() + offsets.size(0) - 1,
                   c10::cuda::getCurrentCUDAStream().stream());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
  }
  if (backend == GroupedGemmBackend::kTensorCoreTiles) {
    // Expert weights come as [E,outputs,inputs], seen from either side.
    const bool by_input = matrices.stride(2) == 1;
    at::Tensor out = at::empty({count, matrices.size(2)}, rows.options());
    const auto stream = c10::cuda::getCurrentCUDAStream().stream();
    grouped_rows_product(rows.const_data_ptr(), matrices.const_data_ptr(), out.mutable_data_ptr(), expert_rows(offsets, count), static_cast<int>(out.size(1)),
                         static_cast<int>(rows.size(1)), by_input, stream);
    zero_tail_rows(out.mutable_data_ptr(), count, out.size(1) * out.element_size(), offsets.const_data_ptr<int32_t>() + offsets.size(0) - 1, stream);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
  }
#endif
  at::Tensor out = at::empty({count, matrices.size(2)}, rows.options());
  const std::vector<int64_t> ends = host_ends(offsets, count);
  for_each_expert(ends, [&](int64_t expert, int64_t begin, int64_t length) {
    if (length > 0) multiply_rows(out.narrow(0, begin, length), rows.narrow(0, begin, length), matrices[expert]);
  });
  out.narrow(0, ends.back(), count - ends.back()).zero_();
  return out;
}

void wgrad_of_expert(const at::Tensor& sink, const at::Tensor& dy, const at::Tensor& x, bool accumulate) {
  if (x.device().is_cpu()) {
    cpu_gemm(sink, dy.t(), x, accumulate, VaryingDimension::kK);
    return;
  }
  at::Tensor out = sink;
  if (x.size(0) == 0) {
    if (!accumulate) out.zero_();
  } else if (out.scalar_type() == x.scalar_type() && !accumulate) {
    at::mm_out(out, dy.t(), x);
  } else if (out.scalar_type() == at::kFloat && x.scalar_type() == at::kFloat) {
    at::addmm_out(out, out, dy.t(), x);  // accumulates: a plain overwrite was taken above
  } else if (out.scalar_type() == at::kFloat) {
    at::addmm_out(out, out, dy.t(), x, at::kFloat, /*beta=*/accumulate ? 1 : 0);
  } else {
    // A BF16 sum is rounded once, after the FP32 product joins it.
    const at::Tensor product = x.scalar_type() == at::kFloat ? at::mm(dy.t(), x) : at::mm(dy.t(), x, at::kFloat);
    if (accumulate)
      out.add_(product);
    else
      out.copy_(product);
  }
}

Shape wgrad_shape(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& offsets) {
  require_rows(dy, offsets, offsets.size(0));
  require_rows(x, offsets, offsets.size(0));
  OOM_CHECK_EQ(dy.size(0), x.size(0), "rows of dy and x of one grouped product");
  OOM_CHECK(dy.scalar_type() == x.scalar_type(), "dy of type ", c10::toString(dy.scalar_type()), ", x of type ", c10::toString(x.scalar_type()));
  return {offsets.size(0), dy.size(1), x.size(1), x.size(0)};
}

}  // namespace

std::string_view name_of(GroupedGemmBackend backend) {
  switch (backend) {
    case GroupedGemmBackend::kCpu: return "expert by expert on the CPU device";
    case GroupedGemmBackend::kGroupedKernel: return "LibTorch's grouped kernel";
    case GroupedGemmBackend::kTensorCoreTiles: return "tensor-core tiles";
    case GroupedGemmBackend::kLoopOverExperts: return "expert by expert on CUDA";
  }
  return "unknown";
}

GroupedGemmBackend choose_grouped_gemm_backend(const GroupedGemmProblem& problem, GroupedGemmBackend preferred) {
  if (problem.device == c10::DeviceType::CPU) return GroupedGemmBackend::kCpu;
  const bool aligned = problem.dtype == at::kBFloat16 && problem.n % 8 == 0 && problem.k % 8 == 0;
  if (aligned && preferred == GroupedGemmBackend::kGroupedKernel && problem.compute_capability == 90 && problem.experts < 1024) return preferred;
  return aligned && problem.compute_capability >= 80 ? GroupedGemmBackend::kTensorCoreTiles : GroupedGemmBackend::kLoopOverExperts;
}

int64_t grouped_wgrad_workspace_bytes(GroupedGemmProblem problem) {
  if (problem.device == c10::DeviceType::CUDA && problem.compute_capability == 0) problem.compute_capability = 90;
  const int64_t product = problem.n * problem.k;
  switch (choose_grouped_gemm_backend(problem)) {
    case GroupedGemmBackend::kGroupedKernel: return problem.experts * product * 2;
    case GroupedGemmBackend::kTensorCoreTiles: return 0;
    case GroupedGemmBackend::kCpu:
    case GroupedGemmBackend::kLoopOverExperts: return problem.dtype == at::kFloat ? 0 : product * 4;
  }
  return 0;
}

at::Tensor grouped_forward(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& offsets) {
  OOM_CHECK(weights.dim() == 3 && weights.is_contiguous(), "expert weights are [E,N,K], contiguous; got ", weights.sizes());
  require_rows(x, offsets, weights.size(0));
  OOM_CHECK(x.size(1) == weights.size(2) && x.scalar_type() == weights.scalar_type(), "rows ", x.sizes(), " against expert weights ", weights.sizes());
  const Shape shape{weights.size(0), weights.size(1), weights.size(2), x.size(0)};
  return multiply_by_expert(x, weights.transpose(1, 2), offsets, backend_for(x, shape));
}

at::Tensor grouped_dgrad(const at::Tensor& dy, const at::Tensor& weights, const at::Tensor& offsets) {
  OOM_CHECK(weights.dim() == 3 && weights.is_contiguous(), "expert weights are [E,N,K], contiguous; got ", weights.sizes());
  require_rows(dy, offsets, weights.size(0));
  OOM_CHECK(dy.size(1) == weights.size(1) && dy.scalar_type() == weights.scalar_type(), "rows ", dy.sizes(), " against expert weights ",
            weights.sizes());
  const Shape shape{weights.size(0), weights.size(1), weights.size(2), dy.size(0)};
  return multiply_by_expert(dy, weights, offsets, backend_for(dy, shape));
}

at::Tensor grouped_wgrad(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& offsets) {
  const Shape shape = wgrad_shape(dy, x, offsets);
  if (shape.rows == 0) return at::zeros({shape.experts, shape.n, shape.k}, x.options());
  // Exactly this layout (a transposed view times row-major rows) accepts experts without rows; the kernel writes their zeros.
  if (backend_for(x, shape) == GroupedGemmBackend::kGroupedKernel) return at::_grouped_mm(dy.t(), x, offsets);
  at::Tensor out = at::empty({shape.experts, shape.n, shape.k}, x.options());
  grouped_wgrad_into({out, /*accumulate=*/false}, dy, x, offsets);
  return out;
}

void grouped_wgrad_into(const GradientSink& sink, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& offsets) {
  const Shape shape = wgrad_shape(dy, x, offsets);
  at::Tensor out = sink.tensor;
  OOM_CHECK(out.dim() == 3 && out.is_contiguous() && out.size(0) == shape.experts && out.size(1) == shape.n && out.size(2) == shape.k,
            "sink ", out.sizes(), " for [", shape.experts, ",", shape.n, ",", shape.k, "]");
  if (shape.rows == 0) {
    if (!sink.accumulate) out.zero_();
    return;
  }
  const GroupedGemmBackend backend = backend_for(x, shape);
  if (backend == GroupedGemmBackend::kGroupedKernel) {
    const at::Tensor product = at::_grouped_mm(dy.t(), x, offsets);
    if (sink.accumulate)
      out.add_(product);
    else
      out.copy_(product);
    return;
  }
#if OOM_WITH_CUDA
  if (backend == GroupedGemmBackend::kTensorCoreTiles) {
    const Sink target{out.mutable_data_ptr(), out.scalar_type() == at::kFloat ? Element::kFloat32 : Element::kBFloat16, sink.accumulate};
    grouped_weights_product(dy.const_data_ptr(), x.const_data_ptr(), target, expert_rows(offsets, shape.rows), static_cast<int>(shape.n), static_cast<int>(shape.k),
                            c10::cuda::getCurrentCUDAStream().stream());
    return;
  }
#endif
  for_each_expert(host_ends(offsets, shape.rows), [&](int64_t expert, int64_t begin, int64_t length) {
    wgrad_of_expert(out[expert], dy.narrow(0, begin, length), x.narrow(0, begin, length), sink.accumulate);
  });
}

}  // namespace oom::ops
