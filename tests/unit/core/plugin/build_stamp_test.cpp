#include "plugin/build_stamp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace oom::plugin {
namespace {
using ::testing::HasSubstr;

TEST(BuildStamp, OfAPluginBuiltAlikeIsTheEngines) {
  const OomBuildStamp mine = OOM_BUILD_STAMP;
  EXPECT_TRUE(stamp_differences(mine, engine_stamp()).empty()) << describe_differences(stamp_differences(mine, engine_stamp()));
}

TEST(BuildStamp, NamesCompilerAndLibTorch) {
  EXPECT_THAT(engine_stamp().compiler, ::testing::MatchesRegex("(gcc|clang) [0-9]+\\.[0-9]+\\.[0-9]+"));
  EXPECT_THAT(engine_stamp().standard_library, ::testing::MatchesRegex("libstdc\\+\\+ [0-9]+|libc\\+\\+ [0-9]+"));
  EXPECT_THAT(engine_stamp().libtorch, ::testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
  EXPECT_THAT(engine_stamp().cxx_standard, ::testing::MatchesRegex("20[0-9]+L"));
  EXPECT_THAT(engine_stamp().cuda, ::testing::MatchesRegex("none|[0-9]+\\.[0-9]+"));
  EXPECT_THAT(engine_stamp().nccl, ::testing::MatchesRegex("none|[0-9]+\\.[0-9]+\\.[0-9]+"));
  EXPECT_EQ(stamp_lines(engine_stamp()).size(), 9u);
}

TEST(BuildStamp, EveryFieldIsCompared) {
  const OomBuildStamp engine = engine_stamp();
  for (const char* OomBuildStamp::*field :
       {&OomBuildStamp::compiler, &OomBuildStamp::standard_library, &OomBuildStamp::library_abi, &OomBuildStamp::cxx_standard,
        &OomBuildStamp::libtorch, &OomBuildStamp::cuda, &OomBuildStamp::nccl, &OomBuildStamp::sdk, &OomBuildStamp::build_mode}) {
    OomBuildStamp other = engine;
    other.*field = "something else";
    const auto differences = stamp_differences(other, engine);
    ASSERT_EQ(differences.size(), 1u);
    EXPECT_EQ(differences[0].plugin, "something else");
    EXPECT_EQ(differences[0].engine, engine.*field);
  }
}

TEST(BuildStamp, ListsEveryDifferenceWithBothValues) {
  OomBuildStamp other = engine_stamp();
  other.libtorch = "2.7.1";
  other.nccl = nullptr;
  EXPECT_EQ(describe_differences(stamp_differences(other, engine_stamp())),
            std::string("another LibTorch: plugin 2.7.1, engine ") + engine_stamp().libtorch + "; another NCCL: plugin unknown, engine " + engine_stamp().nccl);
}

TEST(BuildStamp, FieldsBehindAShorterStampAreUnknown) {
  OomBuildStamp shorter = engine_stamp();
  shorter.struct_size = offsetof(OomBuildStamp, build_mode);
  const auto differences = stamp_differences(shorter, engine_stamp());
  ASSERT_EQ(differences.size(), 1u);
  EXPECT_EQ(differences[0].field, "build mode");
  EXPECT_EQ(differences[0].plugin, "unknown");
}

}  // namespace
}  // namespace oom::plugin
