#include "program/cost_fit.h"

#include <array>
#include <bit>
#include <cmath>
#include <optional>
#include <vector>

namespace oom::program {
namespace {

// What grows with the work first: where nothing tells terms apart, the first are taken.
constexpr int kTerms = 7;
using Terms = std::array<double, kTerms>;
constexpr double kNoise = 0.02;  // of measured seconds
constexpr double kWorth = 0.5;   // of the squares of errors: what a further term must bring them below

Terms features_of(const CostObservation& at) { return {at.arithmetic, at.traffic, at.tokens, at.tokens * at.sequence_length, at.bytes, at.parameters, 1}; }
KindCost cost_of(const Terms& terms) {
  return {.per_arithmetic = terms[0], .per_traffic = terms[1], .fixed = terms[6], .per_token = terms[2], .per_token_context = terms[3], .per_byte = terms[4], .per_parameter = terms[5]};
}

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

struct Fit {
  Terms terms{};
  double error = 0;  // sum of squared relative errors
};

// The least squares fit of `rows` by the terms of `subset`; nothing when these cannot be told apart or one comes out negative.
std::optional<Fit> fit_subset(const std::vector<Terms>& rows, const Terms& length, unsigned subset) {
  std::vector<int> used;
  for (int t = 0; t < kTerms; ++t) {
    if (!(subset >> t & 1)) continue;
    if (!(length[t] > 0)) return std::nullopt;
    used.push_back(t);
  }
  std::vector<std::vector<double>> matrix(used.size(), std::vector<double>(used.size(), 0.0));
  std::vector<double> right(used.size(), 0.0);
  for (const Terms& row : rows) {
    for (size_t i = 0; i < used.size(); ++i) {
      right[i] += row[used[i]] / length[used[i]];
      for (size_t j = 0; j < used.size(); ++j) matrix[i][j] += row[used[i]] / length[used[i]] * row[used[j]] / length[used[j]];
    }
  }
  const std::optional<std::vector<double>> solution = solve(std::move(matrix), std::move(right));
  if (!solution) return std::nullopt;
  Fit fit;
  for (size_t i = 0; i < used.size(); ++i) {
    fit.terms[used[i]] = (*solution)[i] / length[used[i]];
    if (fit.terms[used[i]] < 0) return std::nullopt;
  }
  for (const Terms& row : rows) {
    double value = -1;
    for (int t = 0; t < kTerms; ++t) value += fit.terms[t] * row[t];
    fit.error += value * value;
  }
  return fit;
}

}  // namespace

double predicted_seconds(const KindCost& cost, const CostObservation& at) {
  return cost.per_arithmetic * at.arithmetic + cost.per_traffic * at.traffic + cost.fixed + cost.per_token * at.tokens + cost.per_token_context * at.tokens * at.sequence_length +
         cost.per_byte * at.bytes + cost.per_parameter * at.parameters;
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

  const double count = static_cast<double>(rows.size()), enough = count * kNoise * kNoise;
  Fit best{.terms = {}, .error = count};  // of no terms
  for (int terms = 1; terms <= kTerms && best.error > enough; ++terms) {
    std::optional<Fit> least;
    for (unsigned subset = 1; subset < 1u << kTerms; ++subset) {
      if (std::popcount(subset) != terms) continue;
      const std::optional<Fit> fit = fit_subset(rows, length, subset);
      if (fit && (!least || fit->error < least->error - 1e-12 * count)) least = fit;
    }
    if (least && (terms == 1 || least->error < kWorth * best.error)) best = *least;
  }
  return cost_of(best.terms);
}

}  // namespace oom::program
