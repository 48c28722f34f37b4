#include "oom/ops/reduce.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "ops/reduce_cuda.h"
#include "ops/rows.h"

namespace oom::ops {
namespace {

constexpr int64_t kPiece = 8192;  ///< elements summed by one loop: of the shape alone, whatever the threads

void whole_sum(const at::Tensor& total, const at::Tensor& x, bool squares) {
  require_contiguous(total, at::kDouble, x, "total");
  OOM_CHECK_EQ(total.numel(), 1, "a total is one element");
  WholeSum a{array_of(x), squares, total.data_ptr<double>(), nullptr};
  if (x.numel() == 0) return;
  if (on_cuda(x)) {
    const at::Tensor partials = empty_on(x, {kReduceBlocks}, at::kDouble);
    a.partials = partials.data_ptr<double>();
    if constexpr (kWithCuda) whole_sum_cuda(a, current_stream(x));
    return;
  }
  const int64_t pieces = (a.x.size + kPiece - 1) / kPiece;
  std::vector<double> partials(static_cast<size_t>(pieces));
  with_type(a.x.element, [&](auto tag) {
    using T = decltype(tag);
    at::parallel_for(0, pieces, 4, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        double sum = 0;
        const T* data = static_cast<const T*>(a.x.data);
        for (int64_t i = p * kPiece; i < std::min(a.x.size, (p + 1) * kPiece); ++i) {
          const double value = static_cast<float>(data[i]);
          sum += squares ? value * value : value;
        }
        partials[static_cast<size_t>(p)] = sum;
      }
    });
  });
  double sum = 0;
  for (double partial : partials) sum += partial;
  *a.total += sum;
}

void sum_cpu(const SumPartials& a) {
  with_type(a.out.element, [&](auto out_tag) {
    with_type(a.sources[0].element, [&](auto source_tag) {
      using Out = decltype(out_tag);
      using Source = decltype(source_tag);
      at::parallel_for(0, a.out.size, 16384, [&](int64_t begin, int64_t end) {
        Out* out = static_cast<Out*>(a.out.data);
        for (int64_t i = begin; i < end; ++i) {
          float sum = a.accumulate ? static_cast<float>(out[i]) : static_cast<float>(static_cast<const Source*>(a.sources[0].data)[i]);
          for (int s = a.accumulate ? 0 : 1; s < a.count; ++s) sum += static_cast<float>(static_cast<const Source*>(a.sources[s].data)[i]);
          out[i] = static_cast<Out>(sum);
        }
      });
    });
  });
}

void run_sum(const at::Tensor& out, std::span<const at::Tensor> sources, bool accumulate) {
  OOM_CHECK(!sources.empty() && sources.size() <= kMaxPartials, sources.size(), " partials; 1 to ", kMaxPartials, " can be summed at once");
  SumPartials a;
  a.out = array_of(out);
  a.count = static_cast<int>(sources.size());
  a.accumulate = accumulate;
  for (size_t i = 0; i < sources.size(); ++i) {
    a.sources[i] = array_of(sources[i]);
    OOM_CHECK(sources[i].numel() == out.numel() && sources[i].device() == out.device() && a.sources[i].element == a.sources[0].element, "partial ", i,
              " of sizes ", sources[i].sizes(), " and type ", c10::toString(sources[i].scalar_type()), " for a sum of ", out.sizes());
  }
  if (out.numel() == 0) return;
  if (on_cuda(out)) {
    if constexpr (kWithCuda) sum_partials_cuda(a, current_stream(out));
  } else {
    sum_cpu(a);
  }
}

}  // namespace

void add_sum_of_squares(const at::Tensor& total, const at::Tensor& x) { whole_sum(total, x, true); }
void add_sum(const at::Tensor& total, const at::Tensor& x) { whole_sum(total, x, false); }

void accumulate(const at::Tensor& destination, const at::Tensor& source) {
  OOM_CHECK(destination.scalar_type() == at::kFloat, "sums are kept in FP32; got ", c10::toString(destination.scalar_type()));
  run_sum(destination, {&source, 1}, true);
}

void sum_partials(const at::Tensor& out, std::span<const at::Tensor> partials) { run_sum(out, partials, false); }
void convert(const at::Tensor& destination, const at::Tensor& source) { run_sum(destination, {&source, 1}, false); }

void poison(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kLong: tensor.fill_(std::numeric_limits<int64_t>::min()); break;
    case at::kInt: tensor.fill_(std::numeric_limits<int32_t>::min()); break;
    case at::kFloat:
    case at::kDouble:
    case at::kBFloat16: tensor.fill_(std::numeric_limits<double>::quiet_NaN()); break;
    default: OOM_CHECK(false, "no poison for type ", c10::toString(tensor.scalar_type()));
  }
}

}  // namespace oom::ops
