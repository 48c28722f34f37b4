#include "runtime/unit_stream.h"

namespace oom::runtime {

void UnitStream::begin_step() {
  delivery_.begin_step();
  for (UnitId id = 0; id < count(); ++id) {
    UnitRecord& record = units_.record(id);
    if (!record.deferred) continue;
    record.update_pending = true;
    record.gradient = units_.need_pending(record);
  }
}

void UnitStream::finish_pending() {
  for (UnitId id = 0; id < count(); ++id) {
    if (units_.record(id).update_pending) updates_.emit(id);
  }
}

Delivery UnitStream::deliver(UnitId id) {
  if (units_.record(id).update_pending) updates_.emit(id);
  return delivery_.deliver(id);
}

void UnitStream::retire(UnitId id) {
  reduction_.reduce(id);
  if (!units_.record(id).deferred) updates_.emit(id);
}

std::vector<BufferId> UnitStream::norms() const {
  std::vector<BufferId> all;
  for (UnitId id = 0; id < count(); ++id) {
    const ShardBuffers& norm = units_.record(id).norm;
    all.insert(all.end(), norm.begin(), norm.end());
  }
  return all;
}

}  // namespace oom::runtime
