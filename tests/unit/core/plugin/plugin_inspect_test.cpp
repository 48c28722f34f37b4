#include "plugin/plugin_inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "oom/error.h"
#include "oom/version.h"

namespace oom::plugin {
namespace {
namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class Inspect : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "oom_inspect_XXXXXX").string();
    root_ = mkdtemp(pattern.data());
  }
  void TearDown() override { fs::remove_all(root_); }
  fs::path write(const std::string& bytes) {
    const fs::path path = root_ / "liboom_sample.so";
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    return path;
  }
  fs::path root_;
};

TEST_F(Inspect, FindsTheEntryEvenInAStrippedLibrary) {
  for (const char* path : {OOM_SAMPLE_PLAIN, OOM_SAMPLE_STRIPPED}) {
    const PluginFacts facts = inspect_plugin_file(path);
    EXPECT_THAT(facts.abis, ElementsAre(1u)) << path;
    EXPECT_EQ(facts.static_constructors, 0u) << path;
    EXPECT_NO_THROW(require_our_abi(path, facts));
  }
}

TEST_F(Inspect, RefusesWhatIsNoFile) {
  EXPECT_THAT([&] { inspect_plugin_file(root_ / "missing.so"); }, ThrowsMessage<FileError>(HasSubstr("missing.so: cannot be read: No such file")));
  EXPECT_THAT([&] { inspect_plugin_file(root_); }, ThrowsMessage<FileError>(HasSubstr("is not a regular file")));
}

TEST_F(Inspect, RefusesWhatIsNoSharedLibrary) {
  const auto refused = ThrowsMessage<FileError>(HasSubstr("is not a shared library"));
  EXPECT_THAT([&] { inspect_plugin_file(write("")); }, refused);
  EXPECT_THAT([&] { inspect_plugin_file(write("\x7f")); }, refused);
  EXPECT_THAT([&] { inspect_plugin_file(write("#!/bin/sh\necho hello\n")); }, refused);
  std::string executable = contents(OOM_SAMPLE_PLAIN);
  executable[16] = 2;  // e_type: ET_EXEC
  EXPECT_THAT([&] { inspect_plugin_file(write(executable)); }, refused);
}

TEST_F(Inspect, RefusesAnotherArchitecture) {
  std::string foreign = contents(OOM_SAMPLE_PLAIN);
  foreign[18] = static_cast<char>(243);  // e_machine: RISC-V
  EXPECT_THAT([&] { inspect_plugin_file(write(foreign)); },
              ThrowsMessage<FileError>(HasSubstr("was built for another architecture (ELF machine 243; this engine: ")));
}

TEST_F(Inspect, RefusesEveryTruncation) {
  const std::string whole = contents(OOM_SAMPLE_PLAIN);
  for (size_t length = 0; length < whole.size(); length += 61) {
    EXPECT_THROW(inspect_plugin_file(write(whole.substr(0, length))), FileError) << length << " bytes of " << whole.size();
  }
  EXPECT_THROW(inspect_plugin_file(write(whole.substr(0, whole.size() - 1))), FileError);
}

TEST_F(Inspect, TellsSegmentsPastTheEndOfTheFile) {
  std::string damaged = contents(OOM_SAMPLE_PLAIN);
  damaged[64 + 32 + 5] = 0x10;  // p_filesz of the first program header: 16 TiB
  EXPECT_THAT([&] { inspect_plugin_file(write(damaged)); }, ThrowsMessage<FileError>(HasSubstr("is truncated: segment 0")));
}

TEST(Abi, TellsNoPluginOlderAndNewerApart) {
  EXPECT_THAT([] { require_our_abi("/x/liboom_a.so", {}); },
              ThrowsMessage<FileError>(HasSubstr("/x/liboom_a.so: is not a plugin: it exports no oom_plugin_v1")));
  EXPECT_THAT([] { require_our_abi("/x/liboom_a.so", {{0}, {}, 0}); },
              ThrowsMessage<FileError>(HasSubstr("was built for an older plugin interface: plugin 0, engine 1. Rebuild it against SDK " OOM_SDK_VERSION)));
  EXPECT_THAT([] { require_our_abi("/x/liboom_a.so", {{7}, {}, 0}); },
              ThrowsMessage<FileError>(HasSubstr("was built for a newer plugin interface: plugin 7, engine 1. Update the engine")));
  EXPECT_NO_THROW(require_our_abi("/x/liboom_a.so", {{1, 2}, {}, 0}));
}

}  // namespace
}  // namespace oom::plugin
