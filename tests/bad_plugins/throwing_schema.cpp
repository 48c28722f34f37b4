// Cannot describe its settings.
#include "descriptor.h"
#include "oom/settings.h"

namespace {

class ThrowingSchema : public Harmless {
 public:
  using Harmless::Harmless;
  static const oom::SettingsSchema& settings_schema() { throw oom::Error("the schema is not finished"); }
};

}  // namespace

OOM_PLUGIN(ThrowingSchema, oom::Kind::kExpertStrategy, "throwing_schema", "1.0.0", "Has no schema after all")
