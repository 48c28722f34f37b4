#include "plugin/live_plugins.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plugin/plugin_registry.h"
#include "probe.h"

namespace oom::plugin {
namespace {

std::vector<std::string>& lines() {
  static std::vector<std::string> instance;
  return instance;
}

/// Says when it goes; stands in for a plugin's class.
class Named : public Probe {
 public:
  explicit Named(const HostServices& services) : services_(services) {}
  ~Named() override { services_.log(LogLevel::kInfo, std::to_string(services_.ranks)); }
  int answer(int) override { return services_.ranks; }

 private:
  const HostServices& services_;
};

const OomPluginDescriptor* describe() {
  static constexpr OomBuildStamp kStamp = OOM_BUILD_STAMP;
  using Entry = PluginEntry<Named>;
  static constexpr OomPluginDescriptor kDescriptor = {sizeof(OomPluginDescriptor), OOM_ABI, 0, "named", "1", "", &kStamp,
                                                      &Entry::settings_schema, &Entry::create, &Entry::destroy};
  return &kDescriptor;
}

TEST(LivePlugins, KeepServicesAndGoInReverseOrder) {
  const PluginLibrary library("/nowhere/liboom_named.so", {}, *describe());
  lines().clear();
  {
    LivePlugins live;
    HostServices services = engine_services();
    services.log = [](LogLevel, std::string_view line) { lines().emplace_back(line); };
    Probe* first = nullptr;
    for (int ranks : {1, 2, 3}) {
      services.ranks = ranks;
      Probe& made = live.make<Probe>(library, services);
      if (first == nullptr) first = &made;
    }
    EXPECT_EQ(first->answer(0), 1);
  }
  EXPECT_THAT(lines(), ::testing::ElementsAre("3", "2", "1"));
}

TEST(LivePlugins, RefuseAClassWithoutTheInterface) {
  class Stranger : public Plugin {};
  const PluginLibrary library("/nowhere/liboom_named.so", {}, *describe());
  LivePlugins live;
  EXPECT_THROW(live.make<Stranger>(library, engine_services()), Error);
}

}  // namespace
}  // namespace oom::plugin
