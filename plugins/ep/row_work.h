/// What compute stages do with rows: at their source to sort and to combine them, at their owner to group them by expert and to run the experts.
/// On the current device and stream; never waits for the device.
#pragma once

#include <oom/ops/experts.h>
#include <oom/ops/router.h>

#include "parcels.h"

namespace oom::ep {

/// The choices of one chunk of tokens in expert order; owners are contiguous ranges of it.
struct ChunkOrder {
  at::Tensor token_of;  ///< int32 [n K]: row -> token of the chunk
  at::Tensor row_of;    ///< int32 [n, K]: choice -> row
};

/// Tokens [begin, begin + size) of a rank.
struct TokenRange {
  int64_t begin = 0;
  int64_t size = 0;
  at::Tensor of(const at::Tensor& tokens) const { return tokens.narrow(0, begin, size); }
};

/// Sorted rows of `x`, and beside each its expert, numbered within its owner.
void pack_inputs(const Parcels& out, const at::Tensor& x, const at::Tensor& indices, const ChunkOrder& order, int64_t owned_experts);
/// Sorted rows of `dy`, and beside each its routing weight.
void pack_gradients(const Parcels& out, const at::Tensor& dy, const at::Tensor& weights, const ChunkOrder& order);

/// What backward needs of the rows that an owner received: kept from the forward, or made again.
struct OwnerRows {
  at::Tensor x;         ///< [rows, H] in expert order
  at::Tensor z;         ///< [rows, 2I]
  at::Tensor ends;      ///< of the owner's experts
  at::Tensor token_of;  ///< int32 [rows]: place in expert order -> place of arrival
  at::Tensor row_of;    ///< its inverse
};

/// Runs the owner's experts over `rows` received rows, which their results replace. Fills `kept` when given.
void run_forward(const Parcels& received, int64_t rows, const ops::ExpertWeights& weights, OwnerRows* kept = nullptr);
/// For rows that were not kept and have come again.
OwnerRows make_rows(const Parcels& received, int64_t rows, const ops::ExpertWeights& weights);
/// Replaces received gradients by those of the inputs, and routing weights by their gradients; overwrites rows.z. Without rows: writes zeros into sinks that
/// do not accumulate.
void run_backward(const OwnerRows& rows, const Parcels& received_gradients, const ops::ExpertWeights& weights, const ops::ExpertSinks& sinks);

}  // namespace oom::ep
