#include "example.h"

#include <string>

namespace example {

const oom::SettingsSchema& Example::settings_schema() {
  static const oom::SettingsSchema schema{.table = "example",
                                          .doc = "Settings of the example plugin.",
                                          .settings = {{.key = "patience",
                                                        .forms = oom::kIntegerForm,
                                                        .unit = "steps",
                                                        .range = oom::at_least(1),
                                                        .fallback = int64_t{3},
                                                        .doc = "Steps to wait before judging."}}};
  return schema;
}

Example::Example(const oom::HostServices& services) : services_(services) {
  if (services.settings != nullptr) patience_steps_ = services.settings->get_integer("patience");
  services_.log(oom::LogLevel::kInfo, "example: waits " + std::to_string(patience_steps_) + " steps, then judges");
}

Example::~Example() { services_.log(oom::LogLevel::kDebug, "example: gone"); }

}  // namespace example
