// tests/cli/test_tensorboard.py reads such files with TensorBoard itself.
#include "observe/event_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "observe/crc32c.h"
#include "../scratch_folder.h"

namespace oom::observe {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// RFC 3720, appendix B.4.
TEST(Crc32c, AgreesWithTheStandard) {
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  std::string ascending;
  for (char byte = 0; byte < 32; ++byte) ascending += byte;
  EXPECT_EQ(crc32c(ascending), 0x46dd794eu);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
}

// The first record of every file that TensorFlow writes, at time 0: 24 bytes of data.
TEST(EventFile, BeginsWithTheVersionOfTheFormat) {
  const std::string header = event_file_header();
  EXPECT_EQ(header.substr(0, 8), std::string("\x18\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(header.substr(12, 9), std::string("\x09\0\0\0\0\0\0\0\0", 9));
  EXPECT_EQ(header.substr(21, 15), "\x1a\x0d" "brain.Event:2");
  EXPECT_EQ(header.size(), 8u + 4 + 24 + 4);
}

TEST(EventFile, HoldsNumbersAndListsOfThem) {
  const std::string record = event_record({{"step", 300}, {"time", 1.5}, {"loss", 2.5}, {"gpu_peak_bytes", {1, 2}}, {"text", "no number"}, {"tokens", 100}, {"step_seconds", 0.5}});
  // step 300 as a varint, then a value of tag "loss" and 2.5 as a float.
  EXPECT_THAT(record, HasSubstr("\x10\xac\x02"));
  EXPECT_THAT(record, HasSubstr(std::string("\x0a\x0b\x0a\x04loss\x15\0\0\x20\x40", 13)));
  EXPECT_THAT(record, HasSubstr("gpu_peak_bytes/1"));
  EXPECT_THAT(record, HasSubstr("tokens_per_second"));
  EXPECT_THAT(record, Not(HasSubstr("text")));
}

TEST(EventFile, LeavesOutWhatIsNotFinite) {
  EXPECT_THAT(event_record({{"step", 1}, {"loss", nullptr}, {"grad_norm", INFINITY}}), Not(HasSubstr("loss")));
}

TEST(EventFile, MirrorsTheLinesThatAreThere) {
  const oom::testing::ScratchFolder folder;
  const nlohmann::json first{{"step", 1}, {"loss", 3.0}, {"time", 10.0}}, second{{"step", 2}, {"loss", 2.0}, {"time", 11.0}};
  oom::testing::write_file(folder / "metrics.jsonl", first.dump() + "\n" + second.dump() + "\n");
  const std::filesystem::path file = folder / "tensorboard/events.out.tfevents.oom";
  const EventFile events(folder / "tensorboard", folder / "metrics.jsonl");
  const std::string whole = oom::testing::read_file(file);
  EXPECT_EQ(whole, event_file_header() + event_record(first) + event_record(second));

  // A run that goes on after step 1 tells step 2 once more, to the same bytes.
  oom::testing::write_file(folder / "metrics.jsonl", first.dump() + "\n");
  const EventFile again(folder / "tensorboard", folder / "metrics.jsonl");
  again.append(second);
  EXPECT_EQ(oom::testing::read_file(file), whole);
}

}  // namespace
}  // namespace oom::observe
