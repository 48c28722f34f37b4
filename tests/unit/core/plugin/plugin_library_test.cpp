#include "plugin/plugin_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <regex>
#include <set>

#include "oom/settings.h"
#include "plugin/plugin_registry.h"
#include "probe.h"

// The static flavour: two entries in one program.
extern "C" const OomPluginDescriptor* oom_plugin_v1_tiny() noexcept;
extern "C" const OomPluginDescriptor* oom_plugin_v1_tiny_selector() noexcept;

namespace oom::plugin {
namespace {
namespace fs = std::filesystem;

const fs::path kTiny = fs::path(OOM_TEST_PLUGINS) / "liboom_tiny.so";

TEST(PluginLibrary, DescribesItself) {
  const PluginLibrary& library = PluginLibrary::open("tiny", kTiny);
  EXPECT_EQ(library.name(), "tiny");
  EXPECT_EQ(library.version(), "0.3.1");
  EXPECT_EQ(library.summary(), "Doubles what it is asked");
  EXPECT_EQ(library.kind(), Kind::kExpertStrategy);
  EXPECT_EQ(library.facts().static_constructors, 0u);
}

TEST(PluginLibrary, GivesTheSchemaOfItsTableAndTakesTheTable) {
  const PluginLibrary& library = PluginLibrary::open("tiny", kTiny);
  const SettingsSchema* schema = library.settings_schema();
  ASSERT_NE(schema, nullptr);
  const SettingsTable table = parse_settings(*schema, "factor = 5");
  HostServices services = engine_services();
  services.settings = &table;
  const PluginInstance instance = library.create(services);
  EXPECT_EQ(as_interface<Probe>(*instance, "tiny").answer(2), 10);
}

TEST(PluginLibrary, WithoutATableHasNoSchema) {
  EXPECT_EQ(PluginLibrary::open("tiny_selector", fs::path(OOM_TEST_PLUGINS) / "liboom_tiny_selector.so").settings_schema(), nullptr);
}

TEST(PluginLibrary, IsOpenedOnce) { EXPECT_EQ(&PluginLibrary::open("tiny", kTiny), &PluginLibrary::open("tiny", kTiny)); }

TEST(PluginLibrary, MakesInstancesThatUseTheHostAndGoThroughTheirOwnLibrary) {
  const PluginLibrary& library = PluginLibrary::open("tiny", kTiny);
  static std::vector<std::string> lines;
  HostServices services = engine_services();
  services.ranks = 3;
  services.log = [](LogLevel, std::string_view line) { lines.emplace_back(line); };
  {
    const PluginInstance instance = library.create(services);
    EXPECT_EQ(as_interface<Probe>(*instance, "tiny").answer(7), 42);
    EXPECT_TRUE(lines.empty());
  }
  EXPECT_THAT(lines, ::testing::ElementsAre("tiny: gone"));
}

TEST(PluginLibrary, InterfaceOfAnotherKindIsRefused) {
  class Stranger : public Plugin {};
  const HostServices services = engine_services();
  const PluginInstance instance = PluginLibrary::open("tiny", kTiny).create(services);
  EXPECT_THROW(as_interface<Stranger>(*instance, "tiny"), Error);
}

TEST(PluginLibrary, StaticFlavourLinksTwoPluginsIntoOneProgram) {
  EXPECT_STREQ(oom_plugin_v1_tiny()->name, "tiny");
  EXPECT_STREQ(oom_plugin_v1_tiny_selector()->name, "tiny_selector");
}

/// Copies of one third-party library in a process mean two of its global states. Names are compared without version and build hash.
TEST(PluginLibrary, NoLibraryIsMappedTwice) {
  PluginLibrary::open("tiny", kTiny);
  std::map<std::string, std::set<std::string>> paths_by_name;
  std::ifstream maps("/proc/self/maps");
  const std::regex library("(/\\S*/(lib[^/]*?)(-[0-9a-f]{8,})?\\.so[.0-9]*)$");
  for (std::string line; std::getline(maps, line);) {
    std::smatch match;
    if (std::regex_search(line, match, library)) paths_by_name[match[2]].insert(match[1]);
  }
  EXPECT_TRUE(paths_by_name.contains("liboom_tiny"));
  EXPECT_TRUE(paths_by_name.contains("liboom_core"));
  EXPECT_TRUE(paths_by_name.contains("libtorch_cpu"));
#if OOM_WITH_CUDA
  EXPECT_TRUE(paths_by_name.contains("libtorch_cuda")) << "the linker dropped it: no CUDA operator can be reached";
  EXPECT_TRUE(paths_by_name.contains("libnccl"));
#endif
  for (const auto& [name, paths] : paths_by_name) EXPECT_EQ(paths.size(), 1u) << ::testing::PrintToString(paths);
}

}  // namespace
}  // namespace oom::plugin
