#include "observe/json_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "oom/error.h"
#include "../scratch_folder.h"

namespace oom::observe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class JsonLinesTest : public ::testing::Test {
 protected:
  oom::testing::ScratchFolder folder_;
  std::filesystem::path path_ = folder_ / "lines.jsonl";

  std::string text() const { return oom::testing::read_file(path_); }
};

TEST_F(JsonLinesTest, AppendsALineAnObject) {
  const JsonLines lines(path_);
  lines.append({{"step", 1}, {"loss", 2.5}});
  lines.append({{"step", 2}, {"loss", nullptr}});
  EXPECT_EQ(text(), "{\"step\":1,\"loss\":2.5}\n{\"step\":2,\"loss\":null}\n");
}

TEST_F(JsonLinesTest, TextThatIsNoUtf8IsStillALine) {
  JsonLines(path_).append({{"message", "a \xff b"}});
  EXPECT_EQ(read_json_lines(path_).objects.size(), 1u);
}

TEST_F(JsonLinesTest, ForgetsWhatIsToldAgain) {
  oom::testing::write_file(path_, "{\"step\":1}\nno JSON\n{\"step\":2}\n{\"loss\":3}\n{\"step\":3}\n{\"step\":\"1\"}\n[1]\n{\"step\":2");
  JsonLines lines(path_);
  lines.keep_until(2);
  EXPECT_EQ(text(), "{\"step\":1}\n{\"step\":2}\n");
  lines.keep_until(0);
  EXPECT_EQ(text(), "");
}

TEST_F(JsonLinesTest, WithoutAFileOneIsMade) {
  JsonLines(path_).keep_until(5);
  EXPECT_EQ(text(), "");
}

TEST_F(JsonLinesTest, DamagedLinesAreNamed) {
  oom::testing::write_file(path_, "{\"step\":1}\n\n{\"step\":\n7\n{\"step\":2}\n");
  const ReadLines read = read_json_lines(path_);
  EXPECT_EQ(read.objects.size(), 2u);
  EXPECT_THAT(read.faults, ElementsAre(HasSubstr("lines.jsonl:3: is no JSON object"), HasSubstr("lines.jsonl:4: is no JSON object")));
  EXPECT_FALSE(read.ends_early);
}

TEST_F(JsonLinesTest, ALineThatIsBeingWrittenIsNoFault) {
  for (const char* tail : {"{\"step\":2,\"lo", "{\"step\":2}"}) {
    oom::testing::write_file(path_, std::string("{\"step\":1}\n") + tail);
    const ReadLines read = read_json_lines(path_);
    EXPECT_THAT(read.faults, IsEmpty()) << tail;
    EXPECT_EQ(read.ends_early, read.objects.size() == 1) << tail;
  }
}

TEST_F(JsonLinesTest, WithoutAFileThereIsNothingToRead) { EXPECT_THROW((void)read_json_lines(path_), FileError); }

}  // namespace
}  // namespace oom::observe
