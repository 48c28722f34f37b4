// The good plugin of the tests: doubles what it is asked, and says so in the host's log.
#include "probe.h"

namespace {

class Tiny : public Probe {
 public:
  explicit Tiny(const oom::HostServices& services) : services_(services) {}
  ~Tiny() override { services_.log(oom::LogLevel::kInfo, "tiny: gone"); }
  int answer(int question) override { return services_.ranks * 2 * question; }

 private:
  const oom::HostServices& services_;
};

}  // namespace

OOM_PLUGIN(Tiny, oom::Kind::kExpertStrategy, "tiny", "0.3.1", "Doubles what it is asked")
