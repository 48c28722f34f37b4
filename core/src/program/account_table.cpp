#include <algorithm>
#include <cstdio>

#include "base/text.h"
#include "oom/accountant.h"

namespace oom {
inline namespace abi_1 {

namespace {

std::string row(const std::string& name, int64_t bytes) {
  char line[160];
  std::snprintf(line, sizeof line, "  %-56s %12s\n", name.c_str(), base::format_bytes(bytes).c_str());
  return line;
}

std::string describe_place(const Program& program, const PlaceAccount& account, int objects) {
  std::string text = cat(place_name(account.place), ": peak ", base::format_bytes(account.peak_bytes));
  if (account.peak_stage != kNone) text += " at " + stage_name(program, account.peak_stage);
  text += "\n";
  for (int c = 0; c < kBufferClasses; ++c) {
    if (account.at_peak[c] > 0) text += row(buffer_class_name(static_cast<BufferClass>(c)), account.at_peak[c]);
  }
  const size_t shown = std::min(account.objects.size(), static_cast<size_t>(std::max(objects, 0)));
  if (shown > 0) text += "  largest objects\n";
  for (size_t i = 0; i < shown; ++i) text += row("  " + account.objects[i].name, account.objects[i].bytes);
  return text;
}

}  // namespace

std::string describe(const Program& program, const MemoryAccount& account, int objects) {
  std::string text;
  for (const auto* places : {&account.gpus, &account.nodes}) {
    for (const PlaceAccount& place : *places) text += describe_place(program, place, objects);
  }
  return text;
}

}  // namespace abi_1
}  // namespace oom
