// Its table is called like another plugin's.
#include "descriptor.h"
#include "oom/settings.h"

namespace {

class WrongTable : public Harmless {
 public:
  using Harmless::Harmless;
  static const oom::SettingsSchema& settings_schema() {
    static const oom::SettingsSchema schema{.table = "train", .doc = "Not its own.", .settings = {}};
    return schema;
  }
};

}  // namespace

OOM_PLUGIN(WrongTable, oom::Kind::kExpertStrategy, "wrong_table", "1.0.0", "Takes another's table")
