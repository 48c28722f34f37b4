#include "checkpoint/source_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../scratch_folder.h"
#include "checkpoint/safetensors_writer.h"
#include "oom/error.h"

namespace oom::checkpoint {
namespace {

using ::testing::HasSubstr;

HfDirectory write_folder(const oom::testing::ScratchFolder& folder, const std::vector<TensorInfo>& tensors) {
  std::string data = format_header(tensors, {});
  for (const TensorInfo& tensor : tensors) data.append(static_cast<size_t>(tensor.bytes()), '\0');
  oom::testing::write_file(folder / "model.safetensors", data);
  return HfDirectory(folder.path());
}

TEST(SourceTensors, ComeBackFromTheirText) {
  const oom::testing::ScratchFolder folder;
  const SourceTensors before(write_folder(folder, {{"a", Dtype::kBF16, {8, 3}}, {"b \"quoted\"", Dtype::kF32, {}}, {"c", Dtype::kF8E4M3, {0, 2}}}));
  const SourceTensors after = SourceTensors::parse(before.format(), "source_tensors.json");
  ASSERT_EQ(after.tensors().size(), 3u);
  for (const TensorInfo& tensor : before.tensors()) {
    ASSERT_NE(after.find(tensor.name), nullptr) << tensor.name;
    EXPECT_EQ(after.find(tensor.name)->dtype, tensor.dtype);
    EXPECT_EQ(after.find(tensor.name)->shape, tensor.shape);
  }
  EXPECT_EQ(after.find("d"), nullptr);
  EXPECT_EQ(after.main_dtype(), Dtype::kBF16);
  EXPECT_FALSE(after.empty());
  EXPECT_TRUE(SourceTensors().empty());
}

TEST(SourceTensors, TheMainTypeIsTheOneOfMostBytes) {
  const oom::testing::ScratchFolder folder;
  EXPECT_EQ(SourceTensors(write_folder(folder, {{"a", Dtype::kBF16, {8}}, {"b", Dtype::kF32, {5}}, {"c", Dtype::kBF16, {1}}})).main_dtype(), Dtype::kF32);
  EXPECT_EQ(SourceTensors().main_dtype(), Dtype::kF32);
}

TEST(SourceTensors, WrongTextsAreRefused) {
  for (const auto& [text, words] : {std::pair{"", "JSON"}, {"[]", "object"}, {R"({"a": 3})", "dtype"}, {R"({"a": {"dtype": "F7", "shape": []}})", "F7"}, {R"({"a": {"dtype": "F32"}})", "shape"},
                                    {R"({"a": {"dtype": "F32", "shape": 3}})", "shape"}, {R"({"a": {"dtype": "F32", "shape": [-1]}})", "shape"}}) {
    try {
      SourceTensors::parse(text, "x/source_tensors.json");
      ADD_FAILURE() << text;
    } catch (const FileError& error) {
      EXPECT_THAT(error.what(), HasSubstr("x/source_tensors.json"));
      EXPECT_THAT(error.what(), HasSubstr(words));
    }
  }
}

}  // namespace
}  // namespace oom::checkpoint
