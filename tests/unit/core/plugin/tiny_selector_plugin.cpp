// A second good plugin, of another kind.
#include "probe.h"

namespace {

class TinySelector : public Probe {
 public:
  explicit TinySelector(const oom::HostServices&) {}
  int answer(int question) override { return question + 1; }
};

}  // namespace

OOM_PLUGIN(TinySelector, oom::Kind::kSelector, "tiny_selector", "1.0.0", "Adds one")
