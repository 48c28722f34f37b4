/// A plugin that is right in everything, for the wrong ones to change one thing of.
#pragma once

#include "probe.h"

class Harmless : public Probe {
 public:
  explicit Harmless(const oom::HostServices&) {}
  int answer(int question) override { return question; }
};

inline constexpr OomBuildStamp kGoodStamp = OOM_BUILD_STAMP;

constexpr OomPluginDescriptor good_descriptor(const char* name) {
  using Entry = oom::PluginEntry<Harmless>;
  return {sizeof(OomPluginDescriptor), OOM_ABI, static_cast<uint32_t>(oom::Kind::kExpertStrategy), name, "1.0.0", "A wrong plugin", &kGoodStamp,
          &Entry::settings_schema, &Entry::create, &Entry::destroy};
}
