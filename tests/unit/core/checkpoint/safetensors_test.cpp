#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "../scratch_folder.h"
#include "checkpoint/safetensors_reader.h"
#include "checkpoint/safetensors_writer.h"
#include "mutations.h"
#include "oom/error.h"

namespace oom::checkpoint {
namespace {

using ::testing::HasSubstr;
using testing::read_file;
using testing::ScratchFolder;
using testing::write_file;

std::string file_with(const std::string& header, const std::string& data) {
  uint64_t length = header.size();
  std::string prefix(8, '\0');
  std::memcpy(prefix.data(), &length, 8);
  return prefix + header + data;
}

std::string message_of(const ScratchFolder& folder, const std::string& content) {
  write_file(folder / "x.safetensors", content);
  try {
    const SafetensorsReader reader(folder / "x.safetensors");
    for (const TensorPlace& tensor : reader.header().tensors) {
      std::vector<std::byte> all(static_cast<size_t>(tensor.bytes()));
      reader.read(tensor, 0, all);
    }
  } catch (const FileError& error) {
    return error.what();
  }
  return "no error";
}

std::string tensor_text(const std::string& name, const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}

const std::string kA = tensor_text("a", "\"F32\"", "[2]", "[0,8]");
const std::string kB = tensor_text("b", "\"U8\"", "[2,2]", "[8,12]");
const std::string kData = "0123456789ab";

TEST(Safetensors, WritesAndReadsInPieces) {
  const ScratchFolder folder;
  const std::vector<TensorInfo> tensors{{"b.weight", Dtype::kBF16, {3, 2}}, {"none", Dtype::kF32, {0, 5}}, {"scalar", Dtype::kF64, {}}, {"a", Dtype::kU8, {3}}};
  std::string observed;
  SafetensorsWriter writer(folder / "x", tensors, {{"format", "pt"}}, [&](std::span<const std::byte> bytes) {
    observed.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  });
  const std::string data = "ABCDEFGHIJKLscalar64xyz";
  const auto bytes = std::as_bytes(std::span(data));
  writer.append("b.weight", bytes.subspan(0, 5));
  writer.append("b.weight", bytes.subspan(5, 7));
  writer.append("scalar", bytes.subspan(12, 8));
  writer.append("a", bytes.subspan(20, 3));
  writer.finish();

  const std::string content = read_file(folder / "x");
  EXPECT_EQ(observed, content);
  EXPECT_EQ(content.substr(content.size() - data.size()), data);
  const SafetensorsReader reader(folder / "x");
  EXPECT_EQ(reader.header().metadata.at("format"), "pt");
  EXPECT_EQ(reader.header().header_bytes % 8, 0);
  ASSERT_EQ(reader.header().tensors.size(), 4u);
  for (const TensorInfo& tensor : tensors) {
    const TensorPlace* place = reader.find(tensor.name);
    ASSERT_NE(place, nullptr) << tensor.name;
    EXPECT_EQ(place->dtype, tensor.dtype);
    EXPECT_EQ(place->shape, tensor.shape);
  }
  EXPECT_EQ(reader.find("c"), nullptr);
  std::string middle(4, '\0');
  reader.read(*reader.find("b.weight"), 3, std::as_writable_bytes(std::span(middle)));
  EXPECT_EQ(middle, "DEFG");
  EXPECT_THROW(reader.read(*reader.find("a"), 0, std::as_writable_bytes(std::span(middle))), Error) << "beyond the tensor";
  const auto header = lay_out(tensors, {{"format", "pt"}});
  EXPECT_EQ(header.file_bytes, static_cast<int64_t>(content.size()));
  EXPECT_EQ(header.tensors[3].file_offset, reader.find("a")->file_offset);
}

TEST(Safetensors, TheWriterHoldsCallersToTheirWord) {
  const ScratchFolder folder;
  SafetensorsWriter writer(folder / "x", {{"a", Dtype::kU8, {3}}, {"b", Dtype::kU8, {1}}}, {});
  const std::string data = "0123";
  const auto bytes = std::as_bytes(std::span(data));
  EXPECT_THROW(writer.append("b", bytes.first(1)), Error) << "not its turn";
  EXPECT_THROW(writer.append("a", bytes.first(4)), Error) << "too much";
  writer.append("a", bytes.first(2));
  EXPECT_THROW(writer.finish(), Error) << "too little";
  EXPECT_THROW(SafetensorsWriter(folder / "y", {{"a", Dtype::kU8, {3}}, {"a", Dtype::kU8, {1}}}, {}), Error) << "twice";
}

TEST(Safetensors, RefusesHeadersThatLie) {
  const ScratchFolder folder;
  const auto with = [&](const std::string& header, const std::string& data = kData) { return message_of(folder, file_with(header, data)); };
  EXPECT_EQ(with("{" + kA + "," + kB + "}"), "no error");
  EXPECT_EQ(with("{" + kB + "," + kA + "}   "), "no error") << "any order, padded";
  EXPECT_EQ(with("{}", ""), "no error");
  EXPECT_EQ(with("{\"__metadata__\":{\"k\":\"v\"}," + kA + "," + kB + "}"), "no error");

  EXPECT_THAT(with(" {" + kA + "}"), HasSubstr("must begin with {"));
  EXPECT_THAT(with("[1, 2]"), HasSubstr("must begin with {"));
  EXPECT_THAT(with("{" + kA), HasSubstr("is not valid JSON"));
  EXPECT_THAT(with("{" + kA + "," + kA + "," + kB + "}"), HasSubstr("key appears twice: a"));
  EXPECT_THAT(with("{" + kA + "}"), HasSubstr("tensors end at byte"));
  EXPECT_THAT(with("{" + kB + "}"), HasSubstr("tensor b: leaves a hole before it"));
  EXPECT_THAT(with("{" + kA + "," + kB + "}", kData + "x"), HasSubstr("tensors end at byte"));
  EXPECT_THAT(with("{" + kA + "," + kB + "}", "0123456789a"), HasSubstr("tensor b: data_offsets [8, 12] must lie within the file's 11 bytes"));
  const auto one = [&](const char* dtype, const char* shape, const char* offsets) { return with("{" + tensor_text("t", dtype, shape, offsets) + "}"); };
  EXPECT_THAT(with("{" + kA + "," + tensor_text("t", "\"U8\"", "[5]", "[7,12]") + "}"), HasSubstr("tensor t: overlaps the tensor before it"));
  EXPECT_THAT(one("\"F4\"", "[3]", "[0,12]"), HasSubstr("tensor t: unknown dtype F4"));
  EXPECT_THAT(one("3", "[3]", "[0,12]"), HasSubstr("t.dtype must be text; got number"));
  EXPECT_THAT(one("\"F32\"", "[4]", "[0,12]"), HasSubstr("data_offsets hold 12 bytes, but shape [4] of F32 needs 16"));
  EXPECT_THAT(one("\"F32\"", "[4294967296,4294967296]", "[0,12]"), HasSubstr("overflows"));
  EXPECT_THAT(one("\"F64\"", "[1152921504606846976,8]", "[0,12]"), HasSubstr("overflows"));
  EXPECT_THAT(one("\"F32\"", "[-3]", "[0,12]"), HasSubstr("t.shape must be a whole number"));
  EXPECT_THAT(one("\"F32\"", "[3.0]", "[0,12]"), HasSubstr("t.shape must be a whole number"));
  EXPECT_THAT(one("\"F32\"", "[18446744073709551615]", "[0,12]"), HasSubstr("t.shape must be a whole number"));
  EXPECT_THAT(one("\"F32\"", "3", "[0,12]"), HasSubstr("shape must be an array"));
  EXPECT_THAT(one("\"F32\"", "[3]", "[12,0]"), HasSubstr("data_offsets [12, 0]"));
  EXPECT_THAT(one("\"F32\"", "[3]", "[0,9223372036854775807]"), HasSubstr("must lie within the file's 12 bytes"));
  EXPECT_THAT(one("\"F32\"", "[3]", "[0]"), HasSubstr("data_offsets must be two numbers"));
  EXPECT_THAT(with("{\"t\":{\"dtype\":\"F32\",\"shape\":[3]}}"), HasSubstr("data_offsets is missing"));
  EXPECT_THAT(with("{\"t\":7}"), HasSubstr("an object with dtype is expected"));
  EXPECT_THAT(with("{\"__metadata__\":{\"k\":1}," + kA + "," + kB + "}"), HasSubstr("__metadata__.k must be text"));
  EXPECT_THAT(with("{\"t\":" + std::string(100000, '[') + "}"), HasSubstr("nested deeper"));
  EXPECT_THAT(with("{\"\xFF\":{}}"), HasSubstr("is not valid JSON"));
}

TEST(Safetensors, RefusesEveryTruncation) {
  const ScratchFolder folder(ScratchFolder::kMemory);
  const std::string content = file_with("{" + kA + "," + kB + "}", kData);
  for (size_t length = 0; length < content.size(); ++length)
    EXPECT_NE(message_of(folder, content.substr(0, length)), "no error") << length;
  for (const uint64_t length : {uint64_t{0}, uint64_t{1}, uint64_t{content.size()}, uint64_t{100'000'001}, ~uint64_t{0}, uint64_t{1} << 63}) {
    std::string lying = content;
    std::memcpy(lying.data(), &length, 8);
    EXPECT_THAT(message_of(folder, lying), HasSubstr(cat("header of ", length, " bytes does not fit"))) << length;
  }
}

TEST(Safetensors, MutatedFilesAreReadOrRefusedButNeverCrash) {
  const ScratchFolder folder(ScratchFolder::kMemory);
  std::mt19937 random(1);
  int refused = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string header = "{\"__metadata__\":{\"format\":\"pt\"}," + kA + "," + kB + "}";
    // Half of the rounds keep the length right, so that damage reaches the JSON.
    std::string content;
    if (round % 2 == 0) {
      testing::mutate(header, random);
      content = file_with(header, kData);
    } else {
      content = file_with(header, kData);
      testing::mutate(content, random);
    }
    refused += message_of(folder, content) != "no error";
  }
  EXPECT_GT(refused, 2000);
  EXPECT_LT(refused, 4000);
}

}  // namespace
}  // namespace oom::checkpoint
