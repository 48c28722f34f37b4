// Its constructor throws: an error of ours for one rank, a longer text than the failure can hold for two, a number for three.
#include <string>

#include "descriptor.h"

namespace {

class Failing : public Harmless {
 public:
  explicit Failing(const oom::HostServices& services) : Harmless(services) {
    if (services.ranks == 1) throw oom::BudgetError("needs 3 GiB; the budget is 2 GiB");
    if (services.ranks == 2) throw std::runtime_error(std::string(100'000, 'x'));
    throw 3;
  }
};

}  // namespace

OOM_PLUGIN(Failing, oom::Kind::kExpertStrategy, "failing_create", "1.0.0", "Cannot be made")
