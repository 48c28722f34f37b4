/// The [ep] table of a configuration and of a plan.
#pragma once

#include <oom/model.h>
#include <oom/plan.h>
#include <oom/settings.h>

#include "exchange_layout.h"

namespace oom::ep {

const SettingsSchema& ep_schema();

/// Resolves `settings` (null: defaults) for a model and workload into plan.settings["ep"]. Throws ConfigError.
void configure_ep(const SettingsTable* settings, const ModelDescription& model, Plan& plan);

/// A configured plan with smaller routing chunks, largest first, where `settings` leave the chunk open: halves down to 4096 tokens, and with `last_resort` to 1024.
std::vector<Plan> smaller_chunks(const SettingsTable* settings, const ModelDescription& model, const Plan& plan, bool last_resort);

/// What a configured or loaded plan says. Throws ConfigError when ranks do not divide the experts.
ExchangeShape exchange_shape(const ModelDescription& model, const Plan& plan);

}  // namespace oom::ep
