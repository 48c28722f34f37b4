#include "program/cost_fit.h"

#include <array>
#include <bit>
#include <cmath>
#include <optional>
#include <vector>

namespace oom::program {
namespace {

constexpr int kTerms = 5;
using Terms = std::array<double, kTerms>;

Terms features_of(const CostObservation& at) { return {1, at.tokens, at.tokens * at.sequence_length, at.bytes, at.parameters}; }
KindCost cost_of(const Terms& terms) { return {.fixed = terms[0], .per_token = terms[1], .per_token_context = terms[2], .per_byte = terms[3], .per_parameter = terms[4]}; }

// Solves a small symmetric positive definite system in place; nothing when it is singular to working precision.
std::optional<std::vector<double>> solve(std::vector<std::vector<double>> matrix, std::vector<double> right) {
  const size_t n = right.size();
  for (size_t pivot = 0; pivot < n; ++pivot) {
    // Columns were scaled to unit length: a pivot is the squared distance of its feature from those before.
    if (matrix[pivot][pivot] < 1e-9) return std::nullopt;
    for (size_t row = pivot + 1; row < n; ++row) {
      const double factor = matrix[row][pivot] / matrix[pivot][pivot];
      for (size_t column = pivot; column < n; ++column) matrix[row][column] -= factor * matrix[pivot][column];
      right[row] -= factor * right[pivot];
    }
  }
  for (size_t row = n; row-- > 0;) {
    for (size_t column = row + 1; column < n; ++column) right[row] -= matrix[row][column] * right[column];
    right[row] /= matrix[row][row];
  }
  return right;
}

}  // namespace

double predicted_seconds(const KindCost& cost, const CostObservation& at) {
  return cost.fixed + cost.per_token * at.tokens + cost.per_token_context * at.tokens * at.sequence_length + cost.per_byte * at.bytes + cost.per_parameter * at.parameters;
}

KindCost fit_kind_cost(std::span<const CostObservation> observations) {
  std::vector<Terms> rows;  // each divided by its seconds: errors are relative, and the target is 1
  for (const CostObservation& observation : observations) {
    if (!(observation.seconds > 0)) continue;
    rows.push_back(features_of(observation));
    for (double& value : rows.back()) value /= observation.seconds;
  }
  if (rows.empty()) return {};
  Terms length{};
  for (const Terms& row : rows) {
    for (int t = 0; t < kTerms; ++t) length[t] += row[t] * row[t];
  }
  for (double& value : length) value = std::sqrt(value);

  Terms best{};
  double least = static_cast<double>(rows.size());  // of the empty subset
  int fewest = 0;
  for (unsigned subset = 1; subset < 1u << kTerms; ++subset) {
    std::vector<int> used;
    bool usable = true;
    for (int t = 0; t < kTerms; ++t) {
      if (!(subset >> t & 1)) continue;
      used.push_back(t);
      usable = usable && length[t] > 0;
    }
    if (!usable) continue;
    std::vector<std::vector<double>> matrix(used.size(), std::vector<double>(used.size(), 0.0));
    std::vector<double> right(used.size(), 0.0);
    for (const Terms& row : rows) {
      for (size_t i = 0; i < used.size(); ++i) {
        right[i] += row[used[i]] / length[used[i]];
        for (size_t j = 0; j < used.size(); ++j) matrix[i][j] += row[used[i]] / length[used[i]] * row[used[j]] / length[used[j]];
      }
    }
    const std::optional<std::vector<double>> solution = solve(std::move(matrix), std::move(right));
    if (!solution) continue;
    Terms terms{};
    bool positive = true;
    for (size_t i = 0; i < used.size(); ++i) {
      terms[used[i]] = (*solution)[i] / length[used[i]];
      positive = positive && terms[used[i]] >= 0;
    }
    if (!positive) continue;
    double error = 0;
    for (const Terms& row : rows) {
      double value = -1;
      for (int t = 0; t < kTerms; ++t) value += terms[t] * row[t];
      error += value * value;
    }
    // A further term must explain something that rounding and noise do not.
    const int count = std::popcount(subset);
    const bool better = count > fewest ? error < 0.98 * least - 1e-12 : error < least;
    if (!better) continue;
    best = terms;
    least = error;
    fewest = count;
  }
  return cost_of(best);
}

}  // namespace oom::program
