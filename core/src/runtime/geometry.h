/// What of a model decides how long its stages take, as one line: layers of equal geometry share calibrations whatever their number.
#pragma once

#include <string>

#include "oom/model.h"

namespace oom::runtime {

/// "qwen3_moe, hidden 2048, 128 experts of 768, 8 chosen, layers full_attention+moe (5f2c...)": the number is a hash over the shapes of all
/// parameters of each sort of layer, the embedding and the head.
std::string geometry_of(const ModelDescription& model);

}  // namespace oom::runtime
