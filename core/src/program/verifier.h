/// Judges a program without the builder's help: whatever made it, or changed it, must still be right.
///
/// Unrolls three steps, computes what has completed before each stage starts from lane order, edges and collectives alone, and checks
///   - every read against the write of its version, and every next write of the same bytes against all readers of what was there;
///   - that writers of the same bytes are ordered, in emission order; that nothing reads a transient which is not there;
///   - one updater for every shard; the orders that emitters demanded;
///   - that collectives are complete and every rank issues those of one communicator in one order on one lane;
///   - that no lane waits for ever, and that the issuing threads of all ranks with the pool leaders cannot wait for each other in a circle.
#pragma once

#include <string>
#include <vector>

#include "oom/stage.h"

namespace oom::program {

enum class FaultKind { kStructure, kOrder, kReuse, kTransient, kShard, kCollective, kDeadlock, kHostOrder };

struct Fault {
  FaultKind kind;
  std::string message;  // names stages and buffers
};

/// Returns all faults, each once; empty for a valid program. Order checks are left out after a deadlock.
std::vector<Fault> verify(const Program& program);
/// Throws Error listing the faults of `program`, if any.
void require_valid(const Program& program);

}  // namespace oom::program
