// Every family of the build tree under damaged configurations: whatever config.json says, the outcome is a description whose sizes can be counted, or a
// message. OOM_TINY_MODELS names a folder with a small model of each family, which tests/harness/tiny_models.py writes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "../../core/checkpoint/mutations.h"
#include "base/file.h"
#include "runtime/session.h"

namespace oom {
namespace {

using nlohmann::json;

constexpr int kRounds = 400;

// The members of an object and of the objects in it.
void collect(json& object, std::vector<json*>& values) {
  for (auto& [key, value] : object.items()) {
    values.push_back(&value);
    if (value.is_object()) collect(value, values);
  }
}

std::string damaged(const std::string& text, std::mt19937& random) {
  static const std::vector<json> kValues{nullptr, true,  false, 0,  1,  2,  3,  -1, 7,   64,  1 << 20, 1 << 30, int64_t{1} << 62, std::numeric_limits<uint64_t>::max(), 0.0, 0.5, -0.25, 1e300, "", "default",
                                         "yarn",  json::array(), json::array({0}), json::array({-1, 99}), json::array({"full_attention"}), json::object(), json::object({{"rope_type", "yarn"}, {"factor", 4.0}})};
  if (random() % 4 == 0) {
    std::string changed = text;
    testing::mutate(changed, random);
    return changed;
  }
  json model = json::parse(text);
  for (int changes = 1 + static_cast<int>(random() % 2); changes > 0; --changes) {
    std::vector<json*> values;
    collect(model, values);
    *values[random() % values.size()] = kValues[random() % kValues.size()];
  }
  return model.dump();
}

// State is 16 bytes a parameter, gradient and working weight included: no sum of sizes may leave 64 bits.
bool can_be_counted(const ModelDescription& model) {
  __int128 elements = 0;
  for (const ParameterSpec& parameter : model.parameters) {
    __int128 own = 1;
    for (const int64_t extent : parameter.shape) {
      if (extent < 1) return false;
      own *= extent;
    }
    elements += own;
  }
  return elements * 16 < std::numeric_limits<int64_t>::max();
}

TEST(DescribeFuzz, DamagedConfigsAreDescribedOrRefused) {
  const char* folder = std::getenv("OOM_TINY_MODELS");
  ASSERT_NE(folder, nullptr) << "python tests/harness/tiny_models.py FOLDER writes what it is to name";
  runtime::PluginHost plugins({});
  const std::vector<std::string> built = plugins.registry().available(Kind::kModelAdapter);
  int families = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (std::find(built.begin(), built.end(), entry.path().filename().string()) == built.end()) continue;  // a family that has no plugin yet
    const std::string text = base::read_text_file(entry.path() / "config.json", 1 << 20);
    ASSERT_NO_THROW(plugins.load_model(text, "config.json", {}, true)) << entry.path();
    ++families;
    std::mt19937 random(20261130);
    int refused = 0;
    for (int round = 0; round < kRounds; ++round) {
      const std::string changed = damaged(text, random);
      try {
        const runtime::LoadedModel model = plugins.load_model(changed, "config.json", {}, /*with_operators=*/round % 8 == 0);
        EXPECT_TRUE(can_be_counted(model.description)) << changed;
      } catch (const FileError&) {
        ++refused;
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what() << "\n" << changed;
      }
    }
    EXPECT_GT(refused, kRounds / 10) << entry.path();
    EXPECT_LT(refused, kRounds) << entry.path();
  }
  EXPECT_EQ(families, static_cast<int>(built.size())) << "tests/harness/tiny_models.py must have a small model of each family";
}

}  // namespace
}  // namespace oom
