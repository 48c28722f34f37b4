/// JSON from files that are not trusted: duplicate keys, absurd nesting and wrong types are FileErrors that name file and key.
/// Private to this folder: it brings in the JSON library.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace oom::checkpoint {

/// Parses all of `text`; `file` is named in errors.
nlohmann::json parse_json(std::string_view text, const std::filesystem::path& file);
/// Returns `object[key]`; an absent key, or `object` being none, is an error.
const nlohmann::json& json_member(const nlohmann::json& object, const char* key, const std::filesystem::path& file);
/// Returns an integer of 0 or more.
int64_t json_count(const nlohmann::json& value, std::string_view key, const std::filesystem::path& file);
std::string json_string(const nlohmann::json& value, std::string_view key, const std::filesystem::path& file);
/// Returns a file name that stays in its folder: not empty, no slash, no zero byte, not "." or "..".
std::string json_file_name(const nlohmann::json& value, std::string_view key, const std::filesystem::path& file);

}  // namespace oom::checkpoint
