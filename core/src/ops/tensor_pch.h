// Precompiled for every source of the core that handles tensors.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/TensorOptions.h>
