#include "memory/arena_layout.h"

#include <algorithm>

#include "base/text.h"
#include "oom/error.h"

namespace oom::memory {

using base::format_bytes;

ArenaLayout::ArenaLayout(std::string where, int64_t capacity_bytes) : where_(std::move(where)), capacity_bytes_(capacity_bytes) {
  OOM_CHECK(capacity_bytes >= 0, where_, ": capacity ", capacity_bytes);
}

const ArenaRegion& ArenaLayout::add(std::string name, std::string memory_class, int64_t bytes, int64_t alignment) {
  OOM_CHECK(bytes >= 0, where_, ": region ", name, " of ", bytes, " bytes");
  OOM_CHECK(alignment == kPageBytes || alignment == kCacheLineBytes, where_, ": region ", name, " aligned to ", alignment);
  const int64_t offset = align_up(size_bytes_, alignment);
  if (bytes > capacity_bytes_ || offset > capacity_bytes_ - bytes)
    throw BudgetError(cat(where_, ": '", name, "' (", memory_class, ") needs ", format_bytes(bytes), ", but ", format_bytes(size_bytes_), " of ",
                          format_bytes(capacity_bytes_), " are taken (", describe(), ")"));
  regions_.push_back({std::move(name), std::move(memory_class), offset, bytes});
  size_bytes_ = offset + bytes;
  asked_bytes_ += bytes;
  bytes_by_class_[regions_.back().memory_class] += bytes;
  return regions_.back();
}

std::string ArenaLayout::describe() const {
  std::vector<std::pair<int64_t, std::string>> classes;
  for (const auto& [name, bytes] : bytes_by_class_) classes.emplace_back(bytes, name);
  std::ranges::stable_sort(classes, [](const auto& left, const auto& right) { return left.first > right.first; });
  std::string text;
  for (const auto& [bytes, name] : classes) text += cat(text.empty() ? "" : ", ", name, " ", format_bytes(bytes));
  return text;
}

}  // namespace oom::memory
