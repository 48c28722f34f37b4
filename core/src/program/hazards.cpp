#include "program/hazards.h"

namespace oom::program {

void Hazards::add_buffer(const std::vector<Buffer>& buffers) { storages_.resize(buffers.size()); }

int32_t Hazards::access(std::vector<Buffer>& buffers, StageId stage, BufferId id, AccessMode mode, std::vector<StageId>& wait_for) {
  Buffer& buffer = buffers[id];
  Storage& storage = storages_[buffer.storage];
  if (mode != AccessMode::kWrite) {
    if (buffer.lifetime == Lifetime::kTransient && storage.writer == kNone) {
      throw Error(cat("reads transient buffer '", buffer.name, "' before anything in the step wrote it"));
    }
    if (storage.content != kNone && storage.content != id) {
      throw Error(cat("reads buffer '", buffer.name, "' whose bytes now hold '", buffers[storage.content].name, "'"));
    }
    storage.content = id;
  }
  if (storage.writer != kNone) wait_for.push_back(storage.writer);
  if (storage.writer == kNone && mode != AccessMode::kWrite) {
    storage.first_content = id;
    storage.first_readers.push_back(stage);
  }
  if (mode == AccessMode::kRead) {
    storage.readers.push_back(stage);
    return buffer.versions;
  }
  for (StageId reader : storage.readers) {
    if (reader != stage) wait_for.push_back(reader);
  }
  storage.readers.clear();
  storage.writer = stage;
  storage.content = id;
  if (storage.first_writer == kNone) storage.first_writer = stage;
  return ++buffer.versions;
}

std::vector<Hazards::WrapOrder> Hazards::wrap(const std::vector<Buffer>& buffers) const {
  std::vector<WrapOrder> orders;
  for (const Storage& storage : storages_) {
    if (storage.first_writer == kNone) continue;
    if (storage.first_content != kNone && storage.first_content != storage.content) {
      throw Error(cat("a step begins by reading buffer '", buffers[storage.first_content].name, "', but the step before leaves '",
                      buffers[storage.content].name, "' in its bytes"));
    }
    for (StageId reader : storage.first_readers) orders.push_back({storage.writer, reader});
    orders.push_back({storage.writer, storage.first_writer});
    for (StageId reader : storage.readers) orders.push_back({reader, storage.first_writer});
  }
  return orders;
}

}  // namespace oom::program
