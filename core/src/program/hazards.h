/// Follows the content of every storage through a sequential emission and says which earlier stages an access must wait for.
#pragma once

#include <vector>

#include "oom/stage.h"

namespace oom::program {

class Hazards {
 public:
  /// Call for every buffer in id order. The program's buffers outlive this object.
  void add_buffer(const std::vector<Buffer>& buffers);

  /// Records that `stage` accesses `buffer`, appends the stages of this step that it must wait for, and returns the version read
  /// or made. Throws Error when the buffer's content is not there. Reads of a stage are recorded before its updates and writes.
  int32_t access(std::vector<Buffer>& buffers, StageId stage, BufferId buffer, AccessMode mode, std::vector<StageId>& wait_for);

  /// One order across the wrap: `after` of a step waits for `before` of the step before it.
  struct WrapOrder {
    StageId before;
    StageId after;
  };
  /// Returns all orders between a step and the next. Throws Error when a step reads content that the step before does not leave.
  std::vector<WrapOrder> wrap(const std::vector<Buffer>& buffers) const;

 private:
  struct Storage {
    BufferId content = kNone;        // whose content is there at this point of emission
    StageId writer = kNone;          // last writer in this step
    std::vector<StageId> readers;    // of what `writer` wrote, or of what the step before left
    StageId first_writer = kNone;
    BufferId first_content = kNone;  // whose content the step before must leave, if anything reads it
    std::vector<StageId> first_readers;
  };
  std::vector<Storage> storages_;  // by BufferId; used where the buffer is its own storage
};

}  // namespace oom::program
