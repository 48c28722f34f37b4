// Throws from the middle of its work: the question chooses what.
#include <stdexcept>

#include "descriptor.h"

namespace {

class PrivateError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Throwing : public Harmless {
 public:
  using Harmless::Harmless;
  int answer(int question) override {
    if (question == 1) throw oom::DeviceError("cudaMemcpyAsync: rank 0, device 0");
    if (question == 2) throw PrivateError("a class of the plugin's own");
    if (question == 3) throw question;
    return question;
  }
};

}  // namespace

OOM_PLUGIN(Throwing, oom::Kind::kExpertStrategy, "throwing_method", "1.0.0", "Throws from a method")
