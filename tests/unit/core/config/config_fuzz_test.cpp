// Damaged configurations: whatever the bytes, the outcome is a Config or a ConfigError.
#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "config/config.h"
#include "config/reference.h"
#include "contract_schemas.h"

namespace oom::config {
namespace {

std::string mutated(const std::string& original, std::mt19937& random) {
  static const std::string kTelling = "\"'[]{}=.,#\n\\\t -+_019eExinfau\r\0\xff\xc3\xef\xbb\xbf";
  std::string text = original;
  const int edits = 1 + static_cast<int>(random() % 8);
  for (int i = 0; i < edits && !text.empty(); ++i) {
    const size_t at = random() % text.size();
    const size_t length = 1 + random() % 12;
    switch (random() % 5) {
      case 0: text[at] = static_cast<char>(random()); break;
      case 1: text[at] = kTelling[random() % kTelling.size()]; break;
      case 2: text.insert(at, 1, kTelling[random() % kTelling.size()]); break;
      case 3: text.erase(at, length); break;
      case 4: text.insert(at, text.substr(random() % text.size(), length * 4)); break;
    }
  }
  return text;
}

TEST(ConfigFuzz, DamagedFilesAreReadOrRefused) {
  const auto schemas = contract_schemas();
  std::string original = "model.path = \"m\"\nx = {a.b = [1, 0x1F, 1_0], c = '''t'''}\n[data]\npath = \"\"\"a\\u00e9\\\n  b\"\"\"\n[[z]]\n";
  const std::string reference = reference_toml(schemas);
  for (size_t begin = 0; begin < reference.size();) {  // without the comments, which would take most of the edits
    const size_t end = reference.find('\n', begin);
    if (reference[begin] != '#') original += reference.substr(begin, end + 1 - begin);
    begin = end + 1;
  }
  std::mt19937 random(20261129);
  int accepted = 0, refused = 0;
  const auto limit = std::chrono::steady_clock::now() + std::chrono::milliseconds(1500);
  while (accepted + refused < 20000 && std::chrono::steady_clock::now() < limit) {
    const size_t begin = random() % 2 ? original.find("[data]") : 0;
    const std::string text = mutated(random() % 2 ? original.substr(begin, 200) : "model.path = 'm'\n" + reference.substr(random() % 1000, 600), random);
    try {
      parse_config(text, "damaged.toml", std::vector<std::string>{"model.path=m", mutated("train.betas=[0.9, 0.99]", random)}, schemas);
      ++accepted;
    } catch (const ConfigError& error) {
      ++refused;
      ASSERT_NE(std::string(error.what()), "");
    }
  }
  EXPECT_GT(refused, 100);
}

TEST(ConfigFuzz, DamagedLinesAreReadOrRefused) {
  const auto schemas = contract_schemas();
  std::mt19937 random(7);
  int accepted = 0, refused = 0;
  const auto limit = std::chrono::steady_clock::now() + std::chrono::milliseconds(1000);
  while (accepted + refused < 20000 && std::chrono::steady_clock::now() < limit) {
    const std::string line = mutated("[state]\nresident = [1, 2]\n[budget]\nhost = '1GiB'\n", random);
    try {
      parse_config("model.path = 'm'\n" + line, "damaged.toml", {}, schemas);
      ++accepted;
    } catch (const ConfigError&) {
      ++refused;
    }
  }
  EXPECT_GT(accepted, 20);
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace oom::config
