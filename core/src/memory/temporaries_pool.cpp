#include "memory/temporaries_pool.h"

#include <algorithm>
#include <bit>

#include "base/text.h"
#include "memory/arena_layout.h"
#include "oom/error.h"

namespace oom::memory {

using base::format_bytes;

TemporariesPool::TemporariesPool(std::unique_ptr<PageDevice> device, int64_t address_bytes)
    : device_(std::move(device)), page_bytes_(device_->page_bytes()), address_bytes_(align_up(address_bytes, page_bytes_)), base_(device_->reserve(address_bytes_)),
      heap_(address_bytes_, address_bytes_), slots_(address_bytes_ / page_bytes_) {}

TemporariesPool::~TemporariesPool() {
  device_->wait();
  give_back_free_pages();
}

void TemporariesPool::set_capacity(int64_t bytes, int64_t expected) {
  const std::lock_guard lock(mutex_);
  device_->wait();
  give_back_free_pages();
  capacity_ = bytes / page_bytes_ * page_bytes_;
  expected_ = expected > 0 ? std::min(capacity_, align_up(expected, page_bytes_)) : capacity_;
  heap_.set_large(std::max<int64_t>(expected_ / 64, 1 << 20));
  log_.clear();
  tuned_ = false;
  usage_ = {.in_use = usage_.in_use, .peak_in_use = usage_.in_use, .mapped = usage_.mapped, .peak_mapped = usage_.mapped};
  waits_before_ = 0;
}

std::byte* TemporariesPool::allocate(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  bytes = align_up(bytes, TwoEndedHeap::kAlignment);
  const int64_t offset = heap_.allocate(bytes);
  const auto message = [&] {
    return cat("temporaries: ", format_bytes(bytes), " more are needed beside ", format_bytes(usage_.in_use), " in use; ", format_bytes(capacity_),
               " may be taken. Raise budget.gpu or budget.headroom");
  };
  if (offset < 0) throw DeviceError(message());
  try {
    map_pages(offset, bytes);
  } catch (const DeviceError& error) {
    heap_.release(offset);
    throw DeviceError(cat(message(), error.what()[0] ? " (" : "", error.what(), error.what()[0] ? ")" : ""));
  }
  log_.request(offset, bytes);
  usage_.in_use += bytes;
  usage_.peak_in_use = std::max(usage_.peak_in_use, usage_.in_use);
  return base_ + offset;
}

void TemporariesPool::release(std::byte* block) {
  const std::lock_guard lock(mutex_);
  const int64_t offset = block - base_;
  const int64_t bytes = heap_.release(offset);
  for (int64_t page = offset / page_bytes_; page * page_bytes_ < offset + bytes; ++page) --slots_[page].blocks;
  log_.release(offset);
  usage_.in_use -= bytes;
}

// Counts the block on its pages once all of them are mapped.
void TemporariesPool::map_pages(int64_t offset, int64_t bytes) {
  const int64_t first = offset / page_bytes_, last = (offset + bytes - 1) / page_bytes_;
  const int64_t missing = std::count_if(slots_.begin() + first, slots_.begin() + last + 1, [](const Slot& slot) { return !slot.mapped; });
  for (int64_t page = first; page <= last; ++page) ++slots_[page].blocks;  // none of them may be taken for another
  try {
    if (!tuned_) {
      create_pages(missing, expected_);
      take_free_pages(missing);
    }
    create_pages(missing, capacity_);
    take_free_pages(missing);
    if (static_cast<int64_t>(spare_.size()) < missing) throw DeviceError("");
  } catch (...) {
    for (int64_t page = first; page <= last; ++page) --slots_[page].blocks;
    throw;
  }
  for (int64_t page = first; page <= last; ++page) {
    Slot& slot = slots_[page];
    if (slot.mapped) continue;
    device_->map(page * page_bytes_, spare_.back());
    slot.mapped = true;
    slot.page = spare_.back();
    spare_.pop_back();
  }
}

// Until `count` are spare, or `capacity` is reached.
void TemporariesPool::create_pages(int64_t count, int64_t capacity) {
  while (static_cast<int64_t>(spare_.size()) < count && usage_.mapped < capacity) {
    spare_.push_back(device_->create());
    usage_.mapped += page_bytes_;
    usage_.peak_mapped = std::max(usage_.peak_mapped, usage_.mapped);
  }
}

// Until `count` are spare, or a block lies on each that is not: those between blocks are moved.
void TemporariesPool::take_free_pages(int64_t count) {
  const auto free = [](const Slot& slot) { return slot.mapped && slot.blocks == 0; };
  if (static_cast<int64_t>(spare_.size()) >= count || std::ranges::none_of(slots_, free)) return;
  device_->wait();
  ++usage_.waits;
  // Layers repeat: what this one asked for tells where the next one's blocks lie best. Ever more seldom, since looking takes longer than waiting.
  if (!tuned_ && std::has_single_bit(static_cast<uint64_t>(usage_.waits))) heap_.set_large(log_.best_large());
  for (size_t page = 0; page < slots_.size() && static_cast<int64_t>(spare_.size()) < count; ++page) {
    Slot& slot = slots_[page];
    if (!free(slot)) continue;
    device_->unmap(static_cast<int64_t>(page) * page_bytes_);
    slot.mapped = false;
    spare_.push_back(slot.page);
  }
}

void TemporariesPool::give_back_free_pages() {
  for (size_t page = 0; page < slots_.size(); ++page) {
    Slot& slot = slots_[page];
    if (!slot.mapped || slot.blocks > 0) continue;
    device_->unmap(static_cast<int64_t>(page) * page_bytes_);
    slot.mapped = false;
    spare_.push_back(slot.page);
  }
  for (const PageDevice::Page page : spare_) device_->destroy(page);
  usage_.mapped -= static_cast<int64_t>(spare_.size()) * page_bytes_;
  spare_.clear();
}

void TemporariesPool::end_step() {
  const std::lock_guard lock(mutex_);
  ++usage_.steps;
  if ((!tuned_ || usage_.waits > waits_before_) && !log_.empty()) {
    const int64_t large = log_.best_large();
    if (large != heap_.large()) {
      heap_.set_large(large);
      device_->wait();
      give_back_free_pages();  // what lay elsewhere is not needed again
    }
    tuned_ = true;
    waits_before_ = usage_.waits;
  }
  log_.clear();
}

TemporariesPool::Usage TemporariesPool::usage() const {
  const std::lock_guard lock(mutex_);
  return usage_;
}

}  // namespace oom::memory
