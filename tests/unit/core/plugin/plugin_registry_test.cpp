#include "plugin/plugin_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace oom::plugin {
namespace {
namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Throws;
using ::testing::ThrowsMessage;

const fs::path kPlugins = OOM_TEST_PLUGINS;

class Registry : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "oom_registry_XXXXXX").string();
    root_ = mkdtemp(pattern.data());
  }
  void TearDown() override { fs::remove_all(root_); }
  fs::path root_;
};

TEST_F(Registry, ListsPluginsByKind) {
  PluginRegistry registry({kPlugins});
  EXPECT_THAT(registry.available(Kind::kExpertStrategy), ElementsAre("tiny"));
  EXPECT_THAT(registry.available(Kind::kSelector), ElementsAre("tiny_selector"));
  EXPECT_THAT(registry.available(Kind::kModelAdapter), IsEmpty());
}

TEST_F(Registry, GathersTheTablesOfAllPlugins) {
  PluginRegistry registry({kPlugins});
  const std::vector<PluginSettings> settings = registry.settings_schemas();
  ASSERT_EQ(settings.size(), 1u);
  EXPECT_EQ(settings[0].plugin, "tiny");
  EXPECT_EQ(settings[0].kind, Kind::kExpertStrategy);
  EXPECT_NE(settings[0].schema, nullptr);
}

TEST_F(Registry, LoadsByNameAndKind) {
  PluginRegistry registry({root_, kPlugins});
  EXPECT_EQ(registry.load("tiny", Kind::kExpertStrategy).path(), kPlugins / "liboom_tiny.so");
}

TEST_F(Registry, AMissingPluginOfTheConfigIsTheUsersMistake) {
  PluginRegistry registry({root_, kPlugins});
  EXPECT_THAT([&] { registry.load("fast_ep", Kind::kExpertStrategy, "a.toml:9:14: engine.experts"); },
              ThrowsMessage<ConfigError>("a.toml:9:14: engine.experts: plugin 'fast_ep' not found; looked for liboom_fast_ep.so in: " + root_.string() +
                                         ", " + kPlugins.string() + "; expert strategies here: tiny"));
  EXPECT_THAT([&] { registry.load("fast_ep", Kind::kActivationStrategy); },
              ThrowsMessage<FileError>(HasSubstr("plugin 'fast_ep' not found; looked for liboom_fast_ep.so in: ")));
  EXPECT_THAT([&] { PluginRegistry({}).load("fast_ep", Kind::kModelAdapter, "a.toml:1:1: engine.experts"); },
              ThrowsMessage<ConfigError>(HasSubstr("in: (no folder); model adapters here: none")));
}

TEST_F(Registry, ANameThatIsAPathIsRefused) {
  PluginRegistry registry({kPlugins});
  EXPECT_THAT([&] { registry.load("../tiny", Kind::kExpertStrategy, "a.toml:9:14: engine.experts"); },
              ThrowsMessage<ConfigError>(HasSubstr("engine.experts: plugin name '../tiny' must be lower-case letters")));
}

TEST_F(Registry, ADamagedFileIsReportedAndRefusedWhateverAskedForIt) {
  std::ofstream(root_ / "liboom_broken.so") << "no library";
  PluginRegistry registry({root_, kPlugins});
  EXPECT_THAT([&] { registry.load("broken", Kind::kExpertStrategy, "a.toml:9:14: engine.experts"); },
              ThrowsMessage<FileError>(HasSubstr("liboom_broken.so: is not a shared library")));
  const std::vector<PluginReport> report = registry.report();
  ASSERT_EQ(report.size(), 3u);
  EXPECT_EQ(report[0].name, "broken");
  EXPECT_FALSE(report[0].kind.has_value());
  EXPECT_THAT(report[0].why_unusable, HasSubstr("is not a shared library"));
  EXPECT_EQ(report[1].name, "tiny");
  EXPECT_EQ(report[1].kind, Kind::kExpertStrategy);
  EXPECT_EQ(report[1].why_unusable, "");
}

TEST_F(Registry, TheFirstOfANameWinsWithAWarning) {
  fs::copy_file(kPlugins / "liboom_tiny.so", root_ / "liboom_tiny.so");
  ::testing::internal::CaptureStderr();
  PluginRegistry registry({kPlugins, root_});
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("'tiny' is there twice: using " + (kPlugins / "liboom_tiny.so").string() + ", ignoring " + (root_ / "liboom_tiny.so").string()));
  EXPECT_EQ(registry.load("tiny", Kind::kExpertStrategy).path(), kPlugins / "liboom_tiny.so");
}

TEST_F(Registry, TheSameFileReachedTwiceIsOne) {
  fs::create_symlink(kPlugins / "liboom_tiny.so", root_ / "liboom_tiny.so");
  ::testing::internal::CaptureStderr();
  PluginRegistry first({kPlugins, root_});
  PluginRegistry second({root_});
  const PluginLibrary* library = &first.load("tiny", Kind::kExpertStrategy);
  EXPECT_EQ(&second.load("tiny", Kind::kExpertStrategy), library);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), ::testing::Not(HasSubstr("twice")));
}

TEST_F(Registry, ASecondCopyIsRefusedOnceOneIsLoaded) {
  PluginLibrary::open("tiny", kPlugins / "liboom_tiny.so");
  fs::copy_file(kPlugins / "liboom_tiny.so", root_ / "liboom_tiny.so");
  PluginRegistry registry({root_});
  EXPECT_THAT([&] { registry.load("tiny", Kind::kExpertStrategy); },
              ThrowsMessage<FileError>(HasSubstr("a second copy, " + (root_ / "liboom_tiny.so").string() + ", is refused")));
}

TEST_F(Registry, SearchesTheProgramsAndTheCoresFolders) {
  const SearchPlaces places = process_search_places({"~/x"});
  EXPECT_THAT(places.config_entries, ElementsAre("~/x"));
  EXPECT_TRUE(fs::exists(places.program_folder / "plugin_test")) << places.program_folder;
  EXPECT_TRUE(fs::exists(places.core_folder / "liboom_core.so")) << places.core_folder;
}

}  // namespace
}  // namespace oom::plugin
