// Tests of many settings at once: few cases in which every pair of choices of any two settings meets.
#pragma once

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace oom::testing {

/// A setting, or several that go together: for each choice, what it adds to a case.
struct Factor {
  std::vector<std::vector<std::string>> choices;
};

/// Cases, each a choice of every factor, that hold all pairs of choices of two factors. Greedy: at most a few more than there must be; always the same.
inline std::vector<std::vector<size_t>> covering(const std::vector<Factor>& factors) {
  using Pair = std::tuple<size_t, size_t, size_t, size_t>;  // factor, choice; later factor, choice
  std::set<Pair> missing;
  for (size_t f = 0; f < factors.size(); ++f) {
    for (size_t g = f + 1; g < factors.size(); ++g) {
      for (size_t a = 0; a < factors[f].choices.size(); ++a) {
        for (size_t b = 0; b < factors[g].choices.size(); ++b) missing.insert({f, a, g, b});
      }
    }
  }
  constexpr size_t kOpen = ~size_t{0};
  std::vector<std::vector<size_t>> cases;
  while (!missing.empty()) {
    std::vector<size_t> chosen(factors.size(), kOpen);
    const auto& [first, choice, second, other] = *missing.begin();
    chosen[first] = choice;
    chosen[second] = other;
    const auto gain = [&](size_t factor, size_t candidate) {
      int pairs = 0;
      for (size_t g = 0; g < factors.size(); ++g) {
        if (g == factor || chosen[g] == kOpen) continue;
        pairs += static_cast<int>(missing.count(g < factor ? Pair{g, chosen[g], factor, candidate} : Pair{factor, candidate, g, chosen[g]}));
      }
      return pairs;
    };
    for (size_t f = 0; f < factors.size(); ++f) {
      if (chosen[f] != kOpen) continue;
      size_t best = cases.size() % factors[f].choices.size();  // where all are equal, they take turns
      for (size_t candidate = 0; candidate < factors[f].choices.size(); ++candidate) {
        if (gain(f, candidate) > gain(f, best)) best = candidate;
      }
      chosen[f] = best;
    }
    for (size_t f = 0; f < factors.size(); ++f) {
      for (size_t g = f + 1; g < factors.size(); ++g) missing.erase({f, chosen[f], g, chosen[g]});
    }
    cases.push_back(std::move(chosen));
  }
  return cases;
}

}  // namespace oom::testing
