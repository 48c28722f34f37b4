/// Memory for the storage that a plan's programs name: one region for each name, in the host arena of its node or the device arena of its rank.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "memory/arena_layout.h"
#include "runtime/storage.h"

namespace oom::runtime {

class StorageBank {
 public:
  /// Counts the requests of a program; a name that is there already grows to the larger size.
  void add(const StoragePlan& plan);

  struct Region {
    std::string name;
    Place place;
    int64_t bytes = 0;
    BufferClass buffer_class = BufferClass::kFixed;
    std::byte* data = nullptr;  // filled in by the owner of the memory
  };
  std::vector<Region>& regions() { return regions_; }
  const std::vector<Region>& regions() const { return regions_; }
  const Region& find(const std::string& name) const { return regions_.at(by_name_.at(name)); }
  /// Bytes of a place, every region on a page of its own.
  int64_t total_bytes(Place place) const;

 private:
  std::vector<Region> regions_;
  std::map<std::string, size_t> by_name_;
};

}  // namespace oom::runtime
