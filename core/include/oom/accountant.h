/// Counts the bytes that a program keeps on each GPU and NUMA node while a step goes by, and names what makes the peak.
///
/// Persistent storage counts all the time, once for all buffers that share it. On a GPU, transients count from the start of their
/// first stage to the end of their last one in the order of the compute lane, to which the workspace of the stage that runs is
/// added, and the largest workspace of each other lane at all times (streams do not share cached blocks). On a NUMA node a
/// transient counts at every stage that may run while it exists, in whatever order lanes come, steps overlapping: an upper bound.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "oom/stage.h"

namespace oom {
inline namespace abi_1 {

using ClassBytes = std::array<int64_t, kBufferClasses>;  // by BufferClass

/// A storage or a workspace.
struct MemoryObject {
  std::string name;
  BufferClass buffer_class = BufferClass::kWorkspace;
  int64_t bytes = 0;
};

struct LiveBytes {
  StageId stage = kNone;
  int64_t bytes = 0;  // while it runs, everything included
  ClassBytes classes{};
};

struct PlaceAccount {
  Place place;
  ClassBytes persistent{};
  int64_t persistent_bytes = 0;
  int64_t peak_bytes = 0;
  StageId peak_stage = kNone;  // the first at the peak; kNone where nothing but persistent storage counts
  ClassBytes at_peak{};
  std::vector<MemoryObject> objects;  // at the peak, largest first
  std::vector<LiveBytes> live;        // GPU: each stage of the compute lane; node: each stage; empty without transients
};

struct MemoryAccount {
  std::vector<PlaceAccount> gpus;   // by rank
  std::vector<PlaceAccount> nodes;  // by NUMA node
};

/// Throws Error when the program cannot go on (the verifier says why).
OOM_API MemoryAccount account_memory(const Program& program);
/// Returns a table of bytes by class at each place's peak, and its `objects` largest objects.
OOM_API std::string describe(const Program& program, const MemoryAccount& account, int objects = 5);

}  // namespace abi_1
}  // namespace oom
