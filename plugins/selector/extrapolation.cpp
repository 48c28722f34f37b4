#include "extrapolation.h"

#include <algorithm>

namespace oom::selector {

Extrapolation extrapolate(const ShortRuns::Result& one, const std::optional<ShortRuns::Result>& two, int unit_layers, int layers) {
  Extrapolation whole;
  whole.gpu_peak_bytes = one.gpu_peak_bytes;
  whole.step_seconds = one.step_seconds;
  if (!two) {
    whole.seconds_per_layer = one.step_seconds / layers;
    return whole;
  }
  whole.seconds_per_layer = std::max(0.0, two->step_seconds - one.step_seconds) / unit_layers;
  whole.fixed_seconds = std::max(0.0, one.step_seconds - whole.seconds_per_layer * unit_layers);
  whole.step_seconds = whole.fixed_seconds + whole.seconds_per_layer * layers;
  for (size_t rank = 0; rank < one.gpu_peak_bytes.size(); ++rank) {
    const double per_layer = static_cast<double>(std::max<int64_t>(0, two->gpu_peak_bytes[rank] - one.gpu_peak_bytes[rank])) / unit_layers;
    whole.gpu_peak_bytes[rank] = two->gpu_peak_bytes[rank] + static_cast<int64_t>(per_layer * (layers - 2 * unit_layers));
  }
  return whole;
}

}  // namespace oom::selector
