// The good plugin of the tests: doubles what it is asked, and says so in the host's log.
#include "oom/settings.h"
#include "probe.h"

namespace {

class Tiny : public Probe {
 public:
  explicit Tiny(const oom::HostServices& services) : services_(services) {
    if (services.settings != nullptr) factor_ = static_cast<int>(services.settings->get_integer("factor"));
  }
  ~Tiny() override { services_.log(oom::LogLevel::kInfo, "tiny: gone"); }
  int answer(int question) override { return services_.ranks * factor_ * question; }

  static const oom::SettingsSchema& settings_schema() {
    static const oom::SettingsSchema schema{
        .table = "tiny",
        .doc = "The test plugin.",
        .settings = {{.key = "factor", .forms = oom::kIntegerForm, .range = oom::at_least(1), .fallback = int64_t{2}, .doc = "What it multiplies by."}}};
    return schema;
  }

 private:
  const oom::HostServices& services_;
  int factor_ = 2;
};

}  // namespace

OOM_PLUGIN(Tiny, oom::Kind::kExpertStrategy, "tiny", "0.3.1", "Doubles what it is asked")
