#include "runtime/storage_bank.h"

#include <algorithm>

namespace oom::runtime {

void StorageBank::add(const StoragePlan& plan) {
  for (const StorageRequest& request : plan.requests()) {
    const auto [at, is_new] = by_name_.try_emplace(request.name, regions_.size());
    if (is_new) {
      regions_.push_back({request.name, request.place, request.bytes, request.buffer_class, nullptr});
      continue;
    }
    Region& region = regions_[at->second];
    OOM_CHECK(region.place == request.place, "storage ", request.name, " is asked for at two places");
    region.bytes = std::max(region.bytes, request.bytes);
  }
}

int64_t StorageBank::total_bytes(Place place) const {
  int64_t total = 0;
  for (const Region& region : regions_) {
    if (region.place == place) total += memory::align_up(region.bytes, memory::kPageBytes);
  }
  return total;
}

}  // namespace oom::runtime
