/// Which persistent buffers a program needs memory for, by name: the training, evaluation and drain programs of one plan name the same
/// storage alike and so share it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "oom/error.h"
#include "oom/stage.h"

namespace oom::runtime {

struct StorageRequest {
  std::string name;
  Place place;
  int64_t bytes = 0;
  BufferClass buffer_class = BufferClass::kFixed;
  /// Buffers that lie in it, each at an offset.
  struct Member {
    BufferId buffer = kNone;
    int64_t offset_bytes = 0;
  };
  std::vector<Member> members;
};

class StoragePlan {
 public:
  /// Adds a range of memory and returns its index. Every name is asked for once a program.
  int add(std::string name, Place place, int64_t bytes, BufferClass buffer_class) {
    requests_.push_back({std::move(name), place, bytes, buffer_class, {}});
    return static_cast<int>(requests_.size()) - 1;
  }
  void place(int request, BufferId buffer, int64_t offset_bytes) { requests_.at(request).members.push_back({buffer, offset_bytes}); }
  /// Places `buffer` where `other` lies, which must have been placed.
  void place_at(BufferId other, BufferId buffer) {
    for (StorageRequest& request : requests_) {
      const auto found = std::find_if(request.members.begin(), request.members.end(), [&](const StorageRequest::Member& member) { return member.buffer == other; });
      if (found == request.members.end()) continue;
      request.members.push_back({buffer, found->offset_bytes});
      return;
    }
    OOM_CHECK(false, "buffer ", other, ", beside which ", buffer, " is to lie, has no place");
  }
  const std::vector<StorageRequest>& requests() const { return requests_; }

 private:
  std::vector<StorageRequest> requests_;
};

}  // namespace oom::runtime
