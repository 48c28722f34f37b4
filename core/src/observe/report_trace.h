/// A trace.json as the report draws it.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace oom::observe {

/// {"step": the last traced step, "lanes": [{"place", "lane"}], "kinds": [names], "measured" and "predicted": [[lane, kind, layer or -1, start ms, length ms]],
/// "steps": [{"step", "seconds" from its first to its last stage, "kinds": [{"lane", "kind", "stages", "seconds"}]}]}. Events that are none of a stage are
/// passed over; null when there is no measured one. Throws nothing but what running out of memory does: any JSON may be given.
nlohmann::ordered_json trace_columns(const nlohmann::json& trace);

}  // namespace oom::observe
