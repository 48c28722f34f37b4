// Works while it is being loaded: starts a thread and takes its time.
#include <chrono>
#include <thread>

#include "descriptor.h"

namespace {

struct Busy {
  Busy() {
    std::thread([] { std::this_thread::sleep_for(std::chrono::seconds(5)); }).detach();
    std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  }
};
const Busy busy;

}  // namespace

OOM_PLUGIN(Harmless, oom::Kind::kExpertStrategy, "busy_static", "1.0.0", "Works in a static constructor")
