// Leaves a thread behind when destroyed.
#include <atomic>
#include <chrono>
#include <thread>

#include "descriptor.h"

namespace {

std::atomic<int> ticks{0};

class Unjoined : public Harmless {
 public:
  explicit Unjoined(const oom::HostServices& services) : Harmless(services) {
    std::thread([] {
      for (;;) {
        ++ticks;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }).detach();
  }
  int answer(int) override { return ticks.load(); }
};

}  // namespace

OOM_PLUGIN(Unjoined, oom::Kind::kExpertStrategy, "unjoined_thread", "1.0.0", "Leaves a thread behind")
