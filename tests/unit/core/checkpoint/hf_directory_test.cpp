#include "checkpoint/hf_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "../scratch_folder.h"
#include "base/bfloat16.h"
#include "checkpoint/hf_writer.h"
#include "mutations.h"
#include "oom/error.h"

namespace oom::checkpoint {
namespace {

using ::testing::HasSubstr;
using testing::read_file;
using testing::ScratchFolder;
using testing::write_file;

const std::vector<TensorInfo> kTensors{{"model.embed", Dtype::kBF16, {5, 4}}, {"model.norm", Dtype::kF32, {4}}, {"half", Dtype::kF16, {2}},
                                       {"counts", Dtype::kI64, {2}}};

float value_of(const TensorInfo& tensor, int64_t element) { return static_cast<float>(tensor.name.size()) + 0.5f * static_cast<float>(element); }

/// Values that every dtype here holds exactly.
void give(const TensorInfo& tensor, const ByteSink& sink) {
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    const float value = value_of(tensor, i);
    if (tensor.dtype == Dtype::kBF16) {
      const uint16_t bits = base::to_bfloat16(value);
      sink(std::as_bytes(std::span(&bits, 1)));
    } else if (tensor.dtype == Dtype::kF16) {
      const uint16_t bits = i == 0 ? 0x3C00 : 0xC000;  // 1, -2
      sink(std::as_bytes(std::span(&bits, 1)));
    } else if (tensor.dtype == Dtype::kF32) {
      sink(std::as_bytes(std::span(&value, 1)));
    } else {
      sink(std::as_bytes(std::span(&i, 1)));
    }
  }
}

void write_model(const std::filesystem::path& folder, int64_t shard_bytes) {
  write_hf_directory(folder, "{\"model_type\": \"x\"}", kTensors, give, {.shard_bytes = shard_bytes, .threads = 2});
}

std::string message_of(const std::filesystem::path& folder) {
  try {
    const HfDirectory model(folder);
    for (const auto* tensor : model.tensors()) {
      std::vector<std::byte> all(static_cast<size_t>(tensor->bytes()));
      model.read_bytes(tensor->name, 0, all);
    }
  } catch (const FileError& error) {
    return error.what();
  }
  return "no error";
}

TEST(HfDirectory, ReadsWhatWasWrittenInOneFileOrMany) {
  for (const int64_t shard_bytes : {1, 41, 1000}) {
    const ScratchFolder folder;
    write_model(folder / "m", shard_bytes);
    const bool many = shard_bytes < 1000;
    EXPECT_EQ(std::filesystem::exists(folder / "m/model.safetensors.index.json"), many);
    EXPECT_EQ(std::filesystem::exists(folder / "m/model.safetensors"), !many);
    EXPECT_EQ(read_model_config(folder / "m"), "{\"model_type\": \"x\"}");
    const HfDirectory model(folder / "m");
    ASSERT_EQ(model.tensors().size(), 4u);
    EXPECT_EQ(model.tensors()[0]->name, "counts");
    EXPECT_EQ(model.find("nothing"), nullptr);
    const TensorPlace& embed = model.get("model.embed");
    EXPECT_EQ(embed.shape, (std::vector<int64_t>{5, 4}));
    std::vector<float> rows(8);
    model.read_float("model.embed", 2 * 4, rows);
    for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(rows[static_cast<size_t>(i)], value_of(embed, 8 + i));
    std::vector<float> norm(4);
    model.read_float("model.norm", 0, norm);
    EXPECT_EQ(norm[3], value_of(model.get("model.norm"), 3));
    std::vector<float> half(2);
    model.read_float("half", 0, half);
    EXPECT_THAT(half, ::testing::ElementsAre(1.0f, -2.0f));
    EXPECT_THROW(model.read_float("model.embed", 18, half = std::vector<float>(3)), Error);
  }
}

TEST(HfDirectory, LargeTensorsAreConvertedInPieces) {
  const ScratchFolder folder;
  const std::vector<TensorInfo> tensors{{"w", Dtype::kBF16, {300, 2000}}};
  write_hf_directory(folder / "m", "{}", tensors, [](const TensorInfo& tensor, const ByteSink& sink) {
    std::vector<uint16_t> bits(static_cast<size_t>(tensor.elements()));
    for (size_t i = 0; i < bits.size(); ++i) bits[i] = base::to_bfloat16(static_cast<float>(i % 251));
    sink(std::as_bytes(std::span(bits)));
  });
  const HfDirectory model(folder / "m");
  std::vector<float> values(299 * 2000);
  model.read_float("w", 2000, values);
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], static_cast<float>((i + 2000) % 251));
}

TEST(HfDirectory, NamesWhatIsMissingMisshapenOrNotFinite) {
  const ScratchFolder folder;
  write_model(folder / "m", 1000);
  const HfDirectory model(folder / "m");
  std::vector<float> values(2);
  const auto message = [&](const char* name) -> std::string {
    try {
      model.read_float(name, 0, values);
    } catch (const FileError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(message("model.nrom"), HasSubstr("tensor model.nrom is missing; near it: model.norm"));
  EXPECT_THAT(message("counts"), HasSubstr("tensor counts: dtype must be BF16, F16 or F32; got I64"));

  const std::vector<TensorInfo> tensors{{"w", Dtype::kF32, {3}}};
  write_hf_directory(folder / "n", "{}", tensors, [](const TensorInfo&, const ByteSink& sink) {
    const float broken[] = {1, 2, std::numeric_limits<float>::quiet_NaN()};
    sink(std::as_bytes(std::span(broken)));
  });
  const HfDirectory broken(folder / "n");
  EXPECT_NO_THROW(broken.read_float("w", 0, values));
  try {
    broken.read_float("w", 1, values);
    ADD_FAILURE();
  } catch (const FileError& error) {
    EXPECT_THAT(error.what(), HasSubstr("tensor w: element 2 of shape [3] is not finite; got nan"));
  }
}

TEST(HfDirectory, RefusesFoldersThatAreNotOneModel) {
  const ScratchFolder folder;
  EXPECT_THAT(message_of(folder / "none"), HasSubstr("folder cannot be listed"));
  EXPECT_THAT(message_of(folder.path()), HasSubstr("no *.safetensors files"));
  EXPECT_THROW(read_model_config(folder.path()), FileError);

  write_model(folder / "m", 1);
  const auto index = folder / "m/model.safetensors.index.json";
  const std::string text = read_file(index);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    const size_t at = changed.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    write_file(index, changed.replace(at, from.size(), to));
    return message_of(folder / "m");
  };
  EXPECT_EQ(with("\"half\"", "\"half\""), "no error");
  EXPECT_THAT(with("\"half\"", "\"helf\""), HasSubstr("tensor helf is not in model-00003-of-00004.safetensors, where the index says it is"));
  EXPECT_THAT(with("model-00003-of", "model-00002-of"), HasSubstr("tensor half is not in model-00002"));
  EXPECT_THAT(with("model-00003-of", "model-00009-of"), HasSubstr("model-00009-of-00004.safetensors: cannot be opened"));
  EXPECT_THAT(with("model-00003-of", "../model-00003-of"), HasSubstr("weight_map.half must be the name of a file in the same folder"));
  EXPECT_THAT(with("weight_map", "weight_mop"), HasSubstr("weight_map is missing"));
  write_file(index, "{\"weight_map\": []}");
  EXPECT_THAT(message_of(folder / "m"), HasSubstr("weight_map must be an object"));
  std::filesystem::remove(index);
  EXPECT_EQ(message_of(folder / "m"), "no error") << "without an index every file is read";
  std::filesystem::copy_file(folder / "m/model-00003-of-00004.safetensors", folder / "m/copy.safetensors");
  EXPECT_THAT(message_of(folder / "m"), HasSubstr("tensor half is also in copy.safetensors"));
}

TEST(HfDirectory, AnInterruptedExportIsNoModelAndIsCleanedUp) {
  const ScratchFolder folder;
  const auto fail_late = [](const TensorInfo& tensor, const ByteSink& sink) {
    if (tensor.name == "counts") throw FileError("disk full");
    give(tensor, sink);
  };
  EXPECT_THROW(write_hf_directory(folder / "m", "{}", kTensors, fail_late, {.shard_bytes = 1}), FileError);
  EXPECT_FALSE(std::filesystem::exists(folder / "m/config.json"));
  EXPECT_NE(message_of(folder / "m"), "no error");
  write_model(folder / "m", 1000);
  EXPECT_EQ(message_of(folder / "m"), "no error");
  for (const auto& entry : std::filesystem::directory_iterator(folder / "m")) EXPECT_NE(entry.path().extension(), ".part");
  EXPECT_THROW(write_model(folder / "m", 1000), FileError) << "a model is not overwritten";
}

TEST(HfDirectory, MutatedIndexesAreReadOrRefusedButNeverCrash) {
  const ScratchFolder folder(ScratchFolder::kMemory);
  write_model(folder / "m", 1);
  const auto index = folder / "m/model.safetensors.index.json";
  const std::string text = read_file(index);
  std::mt19937 random(1);
  int refused = 0;
  for (int round = 0; round < 1500; ++round) {
    std::string changed = text;
    testing::mutate(changed, random);
    write_file(index, changed);
    refused += message_of(folder / "m") != "no error";
  }
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace oom::checkpoint
