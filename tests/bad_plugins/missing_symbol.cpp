// Calls a function that only another engine has.
#include "descriptor.h"

extern "C" int oom_function_of_another_engine(int);

namespace {

class Missing : public Harmless {
 public:
  using Harmless::Harmless;
  int answer(int question) override { return oom_function_of_another_engine(question); }
};

}  // namespace

OOM_PLUGIN(Missing, oom::Kind::kExpertStrategy, "missing_symbol", "1.0.0", "Calls what is not there")
