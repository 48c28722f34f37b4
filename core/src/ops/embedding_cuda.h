/// Arguments of the embedding kernels, and their CUDA launches.
#pragma once

#include "ops/element.h"

namespace oom::ops {

struct EmbeddingForward {
  Rows weight, out;
  const int32_t* tokens = nullptr;
  int64_t begin = 0;
  float scale = 1;
  bool whole = false;  ///< tokens outside the table are mistakes
};

struct EmbeddingBackward {
  Rows d_out;
  const int32_t* tokens = nullptr;
  int64_t begin = 0;
  int64_t rows = 0;  ///< of the sink
  int64_t frozen_token = -1;
  float scale = 1;
  Sink sink;
  void* workspace = nullptr;  ///< CUDA: embedding_workspace_bytes
  int64_t workspace_bytes = 0;
};

void embedding_forward_cuda(const EmbeddingForward& arguments, Stream stream);
/// Bytes that sorting `tokens` ids needs.
int64_t embedding_workspace_bytes(int64_t tokens);
void embedding_backward_cuda(const EmbeddingBackward& arguments, Stream stream);

}  // namespace oom::ops
