/// Text in and out: sizes with units, nearest names, joined lists.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace oom::base {

/// Returns `bytes` in binary units with three significant figures: "113 GiB", "1.50 MiB", "812 B".
std::string format_bytes(int64_t bytes);
/// Parses "64MiB", "80 GiB", "1e9", "512": a number and an optional unit of B, KiB, MiB, GiB, TiB, KB, MB, GB, TB (case matters not).
/// Returns nothing when `text` is no size, is negative or overflows.
std::optional<int64_t> parse_bytes(std::string_view text);
/// Returns the name of `names` nearest to `wanted` by edit distance, when near enough to be a likely slip.
std::optional<std::string> nearest_name(std::string_view wanted, std::span<const std::string> names);
std::string join(std::span<const std::string> parts, std::string_view separator);
/// Returns digits grouped by thousands: "30,532,122,624".
std::string group_digits(int64_t value);

}  // namespace oom::base
