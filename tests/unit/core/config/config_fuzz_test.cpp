// Damaged configurations: whatever the bytes, the outcome is a Config or a ConfigError.
// A short run by default; OOM_FUZZ_SECONDS makes each test last so long, from a seed of its own.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <random>
#include <sstream>

#include "config/config.h"
#include "config/reference.h"
#include "contract_schemas.h"

namespace oom::config {
namespace {

std::string mutated(const std::string& original, std::mt19937& random) {
  static const std::string kTelling = "\"'[]{}=.,#\n\\\t -+_019eExinfau\r\0\xff\xc3\xef\xbb\xbf";
  std::string text = original;
  const int edits = 1 << random() % 4;  // few, or every file would end at its first syntax error
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

/// `original` with the value of one of its lines replaced by another: what gets past the parser.
std::string with_other_value(const std::string& original, std::mt19937& random) {
  static const std::vector<std::string> kValues{"nan", "-inf", "1e400", "-1", "0", "1", "2.5", "9223372036854775807", "-9223372036854775808", "0x7f", "true",
                                                "\"\"", "\"auto\"", "\"all\"", "\"1GiB\"", "\"\\u0000\"", "[]", "[0]", "[1, 1]", "[0.5, 0.5]", "[[1]]", "[{}]",
                                                "{}", "{a = 1}", "[\"1KiB\", 2]", "[\"x\", 1]", "2026-01-02"};
  std::vector<size_t> equals;
  for (size_t at = original.find(" = "); at != std::string::npos; at = original.find(" = ", at + 1)) equals.push_back(at + 3);
  const size_t begin = equals[random() % equals.size()];
  std::string text = original;
  return text.replace(begin, original.find('\n', begin) - begin, kValues[random() % kValues.size()]);
}

/// How long to go on, and from which seed: usually a number of rounds, so that the counts below are the same on every machine.
class Effort {
 public:
  Effort(unsigned usual_seed, int usual_rounds) : seed(usual_seed), rounds_(usual_rounds) {
    if (const char* seconds = std::getenv("OOM_FUZZ_SECONDS")) {
      seed = std::random_device{}();
      end_ = std::chrono::steady_clock::now() + std::chrono::seconds(std::atoi(seconds));
      std::cout << "seed " << seed << "\n";
    }
  }
  bool goes_on() { return rounds_-- > 0 || std::chrono::steady_clock::now() < end_; }

  unsigned seed;

 private:
  int rounds_;
  std::chrono::steady_clock::time_point end_;
};

/// Every key that has a default, without comments: loads as it stands.
std::string valid_config() {
  std::string text;
  std::istringstream lines(reference_toml(contract_schemas()));
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && line.front() != '#') text += line + "\n";
  }
  return text;
}

struct Outcomes {
  int accepted = 0, syntax = 0, settings = 0;  // refused as no TOML; refused for a key, a value or a rule
  int total() const { return accepted + syntax + settings; }
};

void read_damaged(const std::string& text, const std::vector<std::string>& overrides, Outcomes& outcomes) {
  static const auto schemas = contract_schemas();
  try {
    const Config config = parse_config(text, "damaged.toml", overrides, schemas);
    ++outcomes.accepted;
    EXPECT_TRUE(parse_config(resolved_toml(config), "resolved.toml", {}, schemas) == config) << text;
  } catch (const ConfigError& error) {
    const std::string message = error.what();
    EXPECT_TRUE(message.starts_with("damaged.toml:") || message.starts_with("--set ")) << message;
    ++(message.find("not valid TOML") == std::string::npos ? outcomes.settings : outcomes.syntax);
  }
}

/// Each layer must have been reached, or the test shows little.
void expect_every_layer(const Outcomes& outcomes) {
  std::cout << outcomes.accepted << " accepted, " << outcomes.syntax << " no TOML, " << outcomes.settings << " faulty settings\n";
  EXPECT_GT(outcomes.accepted, outcomes.total() / 50);
  EXPECT_GT(outcomes.syntax, outcomes.total() / 50);
  EXPECT_GT(outcomes.settings, outcomes.total() / 50);
}

TEST(ConfigFuzz, DamagedFilesAreReadOrRefused) {
  const std::string original = valid_config();
  Effort effort(20261129, 1500);
  std::mt19937 random(effort.seed);
  Outcomes outcomes;
  while (effort.goes_on()) read_damaged(random() % 2 ? mutated(original, random) : with_other_value(original, random), {}, outcomes);
  expect_every_layer(outcomes);
}

// Short and dense, so that each edit lands in a key, a bracket or a value of every kind.
TEST(ConfigFuzz, DamagedLinesAreReadOrRefused) {
  const std::string original =
      "[model]\npath = '''m'''\nseed = 0x1F\n[train]\nbetas = [0.9, 9.5e-1,]\n[state]\nresident = [1, 2]\n"
      "[budget]\nhost = \"1GiB\"  # \u00e9\n[offload]\nkeep_boundaries = \"\"\"3+\\\n  1\"\"\"\n";
  Effort effort(7, 3000);
  std::mt19937 random(effort.seed);
  Outcomes outcomes;
  while (effort.goes_on()) read_damaged(random() % 2 ? mutated(original, random) : with_other_value(original, random), {}, outcomes);
  expect_every_layer(outcomes);
}

TEST(ConfigFuzz, DamagedOverridesAreReadOrRefused) {
  static const std::vector<std::string> kOverrides{"train.betas=[0.9, 0.99]", "budget.host=[\"1GiB\", \"2GiB\"]", "state.resident=all",
                                                   "output.dir=runs/a", "train.learning_rate=1e-4"};
  Effort effort(11, 3000);
  std::mt19937 random(effort.seed);
  Outcomes outcomes;
  while (effort.goes_on()) read_damaged("model.path = 'm'\n", {mutated(kOverrides[random() % kOverrides.size()], random)}, outcomes);
  EXPECT_GT(outcomes.accepted, outcomes.total() / 50);
  EXPECT_GT(outcomes.settings, outcomes.total() / 50);
  EXPECT_EQ(outcomes.syntax, 0);  // what is no TOML is a text
}

}  // namespace
}  // namespace oom::config
