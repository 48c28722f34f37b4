/// Rules between keys, of one table or of several, that need neither the model nor the machine.
#pragma once

#include "config/config.h"
#include "config/faults.h"

namespace oom::config {

void check_rules(const Config& config, Faults& faults);

/// Reports when `ranks` does not divide train.global_batch.
void check_batch(const Config& config, int64_t ranks, Faults& faults);

}  // namespace oom::config
