/// Damage for fuzzing: deterministic from a seed.
#pragma once

#include <random>
#include <string>

namespace oom::testing {

/// Changes, cuts, repeats or inserts bytes of `content` in one to three places.
inline void mutate(std::string& content, std::mt19937& random) {
  const int changes = 1 + static_cast<int>(random() % 3);
  for (int i = 0; i < changes && !content.empty(); ++i) {
    const size_t at = random() % content.size();
    switch (random() % 6) {
      case 0: content[at] = static_cast<char>(random()); break;
      case 1: content[at] = static_cast<char>(content[at] ^ (1 << random() % 8)); break;
      case 2: content.resize(at); break;
      case 3: content.insert(at, content.substr(random() % content.size(), random() % 40)); break;
      case 4: content.erase(at, 1 + random() % 20); break;
      default: content[at] = "0123456789{}[]\",:-e\\"[random() % 20]; break;
    }
  }
}

}  // namespace oom::testing
