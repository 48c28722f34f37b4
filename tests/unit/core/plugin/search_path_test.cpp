#include "plugin/search_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

namespace oom::plugin {
namespace {
namespace fs = std::filesystem;
using ::testing::ElementsAre;

class Folders : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "oom_search_XXXXXX").string();
    root_ = mkdtemp(pattern.data());
  }
  void TearDown() override { fs::remove_all(root_); }
  fs::path folder(const std::string& name) {
    fs::create_directories(root_ / name);
    return root_ / name;
  }
  static fs::path touch(const fs::path& path) {
    std::ofstream(path) << "x";
    return path;
  }
  fs::path root_;
};

TEST_F(Folders, AreSearchedInOrderConfigEnvironmentProgramCore) {
  SearchPlaces places;
  places.config_entries = {"/first", "/second/"};
  places.environment = "/third::/fourth";
  places.program_folder = root_ / "bin";
  places.core_folder = root_ / "elsewhere";
  EXPECT_THAT(plugin_folders(places), ElementsAre("/first", "/second", "/third", "/fourth", root_ / "lib/oom/plugins", root_ / "elsewhere/oom/plugins"));
}

TEST_F(Folders, AreListedOnceHoweverTheyAreReached) {
  const fs::path real = folder("real");
  fs::create_directory_symlink(real, root_ / "link");
  SearchPlaces places;
  places.config_entries = {real.string(), (root_ / "link").string(), (root_ / "real/../real").string(), ""};
  places.environment = ":" + real.string() + ":";
  EXPECT_THAT(plugin_folders(places), ElementsAre(fs::canonical(real)));
}

TEST_F(Folders, ExpandHome) {
  const char* before = std::getenv("HOME");
  const std::string saved = before ? before : "";
  setenv("HOME", root_.c_str(), 1);
  SearchPlaces places;
  places.config_entries = {"~/.oom/plugins", "~"};
  EXPECT_THAT(plugin_folders(places), ElementsAre(root_ / ".oom/plugins", root_));
  setenv("HOME", saved.c_str(), 1);
}

TEST_F(Folders, GiveTheFirstFileOfANameAndNameTheOthers) {
  const fs::path a = folder("a"), b = folder("b"), c = folder("c");
  const fs::path first = touch(a / "liboom_ep.so");
  const fs::path second = touch(b / "liboom_ep.so");
  fs::create_symlink(first, c / "liboom_ep.so");
  const fs::path other = touch(c / "liboom_local.so");
  touch(a / "liboom_core.so");
  touch(a / "liboom_.so");
  touch(a / "libother.so");
  touch(a / "liboom_Bad.so");
  const std::vector<fs::path> folders{a, root_ / "missing", b, c};
  const std::vector<PluginFile> files = find_plugin_files(folders);
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[0].name, "ep");
  EXPECT_EQ(files[0].path, first);
  EXPECT_THAT(files[0].shadowed, ElementsAre(second));
  EXPECT_EQ(files[1].path, other);
  EXPECT_TRUE(files[1].shadowed.empty());
}

TEST(PluginName, IsPartOfAFileName) {
  EXPECT_TRUE(valid_plugin_name("qwen3_5_moe"));
  EXPECT_FALSE(valid_plugin_name(""));
  EXPECT_FALSE(valid_plugin_name("../ep"));
  EXPECT_FALSE(valid_plugin_name("3ep"));
  EXPECT_FALSE(valid_plugin_name("Ep"));
  EXPECT_FALSE(valid_plugin_name(std::string(65, 'a')));
  EXPECT_EQ(plugin_file_name("fast_ep"), "liboom_fast_ep.so");
}

}  // namespace
}  // namespace oom::plugin
