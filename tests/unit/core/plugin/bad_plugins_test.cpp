// What happens to each of tests/bad_plugins.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "oom/version.h"
#include "plugin/build_stamp.h"
#include "plugin/plugin_guard.h"
#include "plugin/plugin_registry.h"
#include "probe.h"

namespace oom::plugin {
namespace {
namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

fs::path file(const std::string& name) { return fs::path(OOM_BAD_PLUGINS) / plugin_file_name(name); }
PluginLibrary& open(const std::string& name) { return PluginLibrary::open(name, file(name)); }

TEST(BadPlugin, WithoutEntryIsNotLoaded) {
  EXPECT_THAT([] { open("no_entry"); }, ThrowsMessage<FileError>(HasSubstr(file("no_entry").string() + ": is not a plugin: it exports no oom_plugin_v1")));
}

TEST(BadPlugin, OfAnotherInterfaceIsNotLoaded) {
  EXPECT_THAT([] { open("older_abi"); }, ThrowsMessage<FileError>(HasSubstr("built for an older plugin interface: plugin 0, engine 1")));
  EXPECT_THAT([] { open("newer_abi"); }, ThrowsMessage<FileError>(HasSubstr("built for a newer plugin interface: plugin 2, engine 1")));
}

TEST(BadPlugin, WithAShortDescriptorIsRefused) {
  EXPECT_THAT([] { open("short_struct"); }, ThrowsMessage<FileError>(HasSubstr("has a descriptor of 56 bytes; this engine needs 72")));
  EXPECT_THAT([] { open("null_descriptor"); }, ThrowsMessage<FileError>(HasSubstr("null pointer")));
}

TEST(BadPlugin, WithAnotherStampIsToldEveryDifference) {
  EXPECT_THAT([] { open("wrong_stamp"); },
              ThrowsMessage<FileError>("plugin 'wrong_stamp' (" + file("wrong_stamp").string() + ") was built for another compiler: plugin gcc 4.2.1, engine " +
                                       engine_stamp().compiler + "; another LibTorch: plugin 1.0.0, engine " + engine_stamp().libtorch +
                                       ". Rebuild it with the engine's tools and options."));
}

TEST(BadPlugin, OfTheWrongKindIsTheConfigsMistake) {
  PluginRegistry registry({fs::path(OOM_BAD_PLUGINS)});
  EXPECT_THAT([&] { registry.load("wrong_kind", Kind::kExpertStrategy, "a.toml:9:14: engine.experts"); },
              ThrowsMessage<ConfigError>(AllOf(HasSubstr("a.toml:9:14: engine.experts: plugin 'wrong_kind' ("),
                                               HasSubstr(") is a selector, not an expert strategy; expert strategies here: busy_static, "))));
  EXPECT_THAT([&] { registry.load("wrong_kind", Kind::kActivationStrategy); }, ThrowsMessage<FileError>(HasSubstr("not an activation strategy")));
}

TEST(BadPlugin, ThatNeedsWhatThisEngineLacksIsToldByTheLoadersWords) {
  EXPECT_THAT([] { open("missing_symbol"); },
              ThrowsMessage<FileError>(AllOf(HasSubstr("plugin 'missing_symbol' (" + file("missing_symbol").string() + ") cannot be loaded: "),
                                             HasSubstr("oom_function_of_another_engine"), HasSubstr("rebuild it"))));
}

TEST(BadPlugin, WithAnotherNameThanItsFileIsRefused) {
  EXPECT_THAT([] { open("misnamed"); }, ThrowsMessage<FileError>(HasSubstr("calls itself 'right_name'; name and file name must agree")));
}

TEST(BadPlugin, WithBadSettingsIsRefused) {
  EXPECT_THAT([] { open("wrong_table").settings_schema(); },
              ThrowsMessage<FileError>(HasSubstr("describes settings for the table [train]; a plugin's table has the plugin's name")));
  EXPECT_THAT([] { open("throwing_schema").settings_schema(); },
              ThrowsMessage<Error>("plugin 'throwing_schema', settings_schema: the schema is not finished"));
}

/// One wrong plugin in a folder must not keep a config from being read: its table is left out, and the report says why.
TEST(BadPlugin, WithBadSettingsDoesNotSpoilTheOthers) {
  PluginRegistry registry({fs::path(OOM_BAD_PLUGINS), fs::path(OOM_TEST_PLUGINS)});
  const std::vector<PluginSettings> settings = registry.settings_schemas();
  ASSERT_EQ(settings.size(), 1u);
  EXPECT_EQ(settings[0].plugin, "tiny");
  for (const PluginReport& report : registry.report()) {
    if (report.name != "wrong_table") continue;
    EXPECT_THAT(report.why_unusable, HasSubstr("the table [train]"));
  }
  EXPECT_THAT([&] { registry.load("wrong_table", Kind::kExpertStrategy); }, ThrowsMessage<FileError>(HasSubstr("the table [train]")));
}

TEST(BadPlugin, ThatMakesNothingIsADefect) {
  const HostServices services = engine_services();
  EXPECT_THAT([&] { open("null_create").create(services); },
              ThrowsMessage<Error>("plugin 'null_create', create: failed without saying why (a defect of the plugin)"));
}

TEST(BadPlugin, ThatCannotBeMadeSaysWhyWithItsExitCode) {
  HostServices services = engine_services();
  services.ranks = 1;
  EXPECT_THAT([&] { open("failing_create").create(services); },
              ThrowsMessage<BudgetError>("plugin 'failing_create', create: needs 3 GiB; the budget is 2 GiB"));
  services.ranks = 2;
  EXPECT_THAT([&] { open("failing_create").create(services); }, ThrowsMessage<Error>(HasSubstr("create: xxxx")));
  services.ranks = 3;
  EXPECT_THAT([&] { open("failing_create").create(services); }, ThrowsMessage<Error>(HasSubstr("threw something that is no std::exception")));
}

TEST(BadPlugin, ThatThrowsFromAMethodIsNamedWithMethodAndStep) {
  const HostServices services = engine_services();
  const PluginInstance instance = open("throwing_method").create(services);
  auto& probe = as_interface<Probe>(*instance, "throwing_method");
  const auto ask = [&](int question) { return guarded("throwing_method", "answer", 4, [&] { return probe.answer(question); }); };
  EXPECT_EQ(ask(0), 0);
  EXPECT_THAT([&] { ask(1); }, ThrowsMessage<DeviceError>("plugin 'throwing_method', answer, step 4: cudaMemcpyAsync: rank 0, device 0"));
  EXPECT_THAT([&] { ask(2); }, ThrowsMessage<PluginError>(AllOf(HasSubstr("PrivateError"), HasSubstr("a class of the plugin's own"))));
  EXPECT_THAT([&] { ask(3); }, ThrowsMessage<PluginError>(HasSubstr("threw a int")));
}

/// Nobody can join a thread that its plugin forgot. What is promised: its code stays mapped, so it runs on without harm until the process ends.
TEST(BadPlugin, ThatLeavesAThreadBehindDoesNotCrashTheProcess) {
  const HostServices services = engine_services();
  PluginInstance instance = open("unjoined_thread").create(services);
  instance.reset();
  instance = open("unjoined_thread").create(services);
  auto& probe = as_interface<Probe>(*instance, "unjoined_thread");
  const int before = probe.answer(0);
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (probe.answer(0) < before + 3 && std::chrono::steady_clock::now() < give_up) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_GE(probe.answer(0), before + 3);
}

/// Static constructors run before any check can: the file's facts count them beforehand, and what they did is told afterwards. In a process of
/// its own, because a library is loaded once.
TEST(BadPluginDeathTest, ThatWorksInAStaticConstructorIsNamed) {
  EXPECT_GE(inspect_plugin_file(file("busy_static")).static_constructors, 1u);
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        open("busy_static");
        _exit(0);
      },
      ::testing::ExitedWithCode(0),
      AllOf(HasSubstr("liboom_busy_static.so) started 1 threads while it was being loaded"), HasSubstr("s to load; static constructors must do nothing")));
}

}  // namespace
}  // namespace oom::plugin
