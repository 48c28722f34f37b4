#include "plugin/build_stamp.h"

#include <array>
#include <cstring>
#include <string_view>

#include "oom/error.h"

namespace oom::plugin {
namespace {

static_assert(std::string_view(OOM_PROJECT_VERSION) == OOM_SDK_VERSION, "raise OOM_SDK_VERSION (core/include/oom/version.h) with the project's version");

struct Field {
  const char* name;
  size_t offset;
};
constexpr std::array<Field, 9> kFields{{{"compiler", offsetof(OomBuildStamp, compiler)},
                                        {"standard library", offsetof(OomBuildStamp, standard_library)},
                                        {"standard library ABI", offsetof(OomBuildStamp, library_abi)},
                                        {"C++ standard", offsetof(OomBuildStamp, cxx_standard)},
                                        {"LibTorch", offsetof(OomBuildStamp, libtorch)},
                                        {"CUDA", offsetof(OomBuildStamp, cuda)},
                                        {"NCCL", offsetof(OomBuildStamp, nccl)},
                                        {"SDK", offsetof(OomBuildStamp, sdk)},
                                        {"build mode", offsetof(OomBuildStamp, build_mode)}}};
static_assert(sizeof(OomBuildStamp) == sizeof(uint64_t) + kFields.size() * sizeof(const char*), "name every field of the stamp here");

/// Reads a field within the bytes that the stamp's maker knew of.
std::string_view value(const OomBuildStamp& stamp, const Field& field) {
  if (field.offset + sizeof(const char*) > stamp.struct_size) return "unknown";
  const char* text = nullptr;
  std::memcpy(&text, reinterpret_cast<const char*>(&stamp) + field.offset, sizeof text);
  return text == nullptr ? std::string_view("unknown") : std::string_view(text);
}

}  // namespace

const OomBuildStamp& engine_stamp() {
  static constexpr OomBuildStamp kStamp = OOM_BUILD_STAMP;
  return kStamp;
}

std::vector<StampDifference> stamp_differences(const OomBuildStamp& plugin, const OomBuildStamp& engine) {
  std::vector<StampDifference> differences;
  for (const Field& field : kFields) {
    const std::string_view theirs = value(plugin, field);
    const std::string_view ours = value(engine, field);
    if (theirs != ours) differences.push_back({field.name, std::string(theirs), std::string(ours)});
  }
  return differences;
}

std::string describe_differences(const std::vector<StampDifference>& differences) {
  std::string text;
  for (const StampDifference& difference : differences) {
    text += cat(text.empty() ? "" : "; ", "another ", difference.field, ": plugin ", difference.plugin, ", engine ", difference.engine);
  }
  return text;
}

std::vector<std::string> stamp_lines(const OomBuildStamp& stamp) {
  std::vector<std::string> lines;
  for (const Field& field : kFields) lines.push_back(cat(field.name, ": ", value(stamp, field)));
  return lines;
}

}  // namespace oom::plugin
