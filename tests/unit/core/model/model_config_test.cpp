// A model's config.json is untrusted text: whatever the bytes, the outcome is values or a FileError.
#include "oom/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../checkpoint/mutations.h"
#include "model/first_layers.h"

namespace oom {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const std::string kConfig = R"({
 "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 160, "hidden_size": 64, "num_hidden_layers": 3,
 "mlp_only_layers": [0, 2], "layer_types": ["full_attention", "full_attention", "full_attention"], "rms_norm_eps": 1e-6, "tie_word_embeddings": false,
 "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}, "hidden_act": "silu", "sliding_window": null
})";

// Reads every kind of value, as an adapter does.
void read(const std::string& text) {
  const ModelConfig config = ModelConfig::parse(text, "config.json");
  config.string("model_type", "");
  config.integer("vocab_size");
  config.integer("hidden_size", 64);
  config.integer("num_hidden_layers", 1);
  config.integers("mlp_only_layers", {});
  config.strings("layer_types");
  config.number("rms_norm_eps", 1e-6);
  config.flag("tie_word_embeddings", false);
  if (const std::optional<ModelConfig> rope = config.child("rope_parameters")) {
    rope->string("rope_type", "default");
    rope->number("rope_theta", 1e4);
  }
  config.require("hidden_act", "\"silu\"", "another activation");
  config.ignore({"architectures", "sliding_window"});
  config.finish();
}

std::string with(const std::string& key, const std::string& value) {
  std::string text = kConfig;
  const size_t begin = text.find("\"" + key + "\": ") + key.size() + 4;
  size_t end = begin;
  for (int depth = 0; depth > 0 || (text[end] != ',' && text[end] != '}'); ++end) depth += (text[end] == '[' || text[end] == '{') - (text[end] == ']' || text[end] == '}');
  return text.replace(begin, end - begin, value);
}

TEST(ModelConfig, ReadsWhatIsThere) {
  EXPECT_NO_THROW(read(kConfig));
  EXPECT_NO_THROW(read(with("rms_norm_eps", "1")));
}

TEST(ModelConfig, NamesFileKeyAndValue) {
  const auto reading = [](const std::string& text) { return [text] { read(text); }; };
  EXPECT_THAT(reading(with("vocab_size", "\"many\"")), ThrowsMessage<FileError>("config.json: vocab_size: must be an integer; got \"many\""));
  EXPECT_THAT(reading(with("rope_parameters", "3")), ThrowsMessage<FileError>("config.json: rope_parameters: must be an object; got 3"));
  EXPECT_THAT(reading(with("rope_parameters", "{\"rope_type\": 7}")), ThrowsMessage<FileError>(HasSubstr("rope_parameters.rope_type: must be text; got 7")));
  EXPECT_THAT(reading(with("rope_parameters", "{\"factor\": 7}")), ThrowsMessage<FileError>(HasSubstr("not understood: rope_parameters.factor = 7")));
  EXPECT_THAT(reading(with("hidden_act", "\"relu\"")), ThrowsMessage<FileError>(AllOf(HasSubstr("hidden_act"), HasSubstr("only \"silu\""))));
  EXPECT_THAT(reading("[1]"), ThrowsMessage<FileError>(HasSubstr("must hold a JSON object; got array")));
  EXPECT_THAT(reading("{\"a\": 1, \"a\": 2}"), ThrowsMessage<FileError>(HasSubstr("key appears twice: a")));
}

// Values are shown in messages: neither their depth nor their length may hurt.
TEST(ModelConfig, DeepAndLongValuesAreRefusedBriefly) {
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  EXPECT_THAT([&] { read(with("sliding_window", deep)); }, ThrowsMessage<FileError>(HasSubstr("nested deeper than 64 levels")));
  try {
    read(with("vocab_size", "\"" + std::string(1'000'000, 'x') + "\""));
    ADD_FAILURE() << "took a text for a number";
  } catch (const FileError& error) {
    EXPECT_LT(std::string(error.what()).size(), 300u);
  }
}

TEST(ModelConfig, DamagedTextsAreReadOrRefused) {
  static const std::vector<std::string> kKeys{"vocab_size", "hidden_size", "num_hidden_layers", "mlp_only_layers", "layer_types", "rms_norm_eps", "tie_word_embeddings", "rope_parameters", "hidden_act", "sliding_window"};
  static const std::vector<std::string> kValues{"null", "true", "-1", "0", "1e400", "-1e-400", "18446744073709551615", "9223372036854775808", "2.5", "\"\"", "\"\\u0000\"", "\"\xff\"", "[]", "[1e3]", "[[]]", "{}",
                                                "{\"a\": {\"b\": []}}", "NaN", "[null]"};
  std::mt19937 random(20261130);
  int refused = 0, rounds = 0;
  for (; rounds < 20'000; ++rounds) {
    std::string text = kConfig;
    if (random() % 2 == 0) text = with(kKeys[random() % kKeys.size()], kValues[random() % kValues.size()]);
    else testing::mutate(text, random);
    try {
      const std::string cut = random() % 2 == 0 ? text : first_layers(text, "config.json", 2);
      read(cut);
    } catch (const FileError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, rounds / 4);
  EXPECT_LT(refused, rounds * 99 / 100);
}

}  // namespace
}  // namespace oom
