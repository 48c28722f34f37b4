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
  give_back_free_pages(0);
}

void TemporariesPool::set_capacity(int64_t bytes, int64_t expected) {
  const std::lock_guard lock(mutex_);
  device_->wait();
  give_back_free_pages(0);
  capacity_ = bytes / page_bytes_ * page_bytes_;
  expected_ = expected > 0 ? std::min(capacity_, align_up(expected, page_bytes_)) : capacity_;
  heap_.set_large(std::max<int64_t>(expected_ / 64, 1 << 20));
  log_.clear();
  tuned_ = false;
  usage_ = {.in_use = usage_.in_use, .peak_in_use = usage_.in_use, .mapped = usage_.mapped, .peak_mapped = usage_.mapped};
  next_look_ = 1;
}

std::byte* TemporariesPool::allocate(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  bytes = align_up(bytes, TwoEndedHeap::kAlignment);
  const int64_t offset = heap_.allocate(bytes);
  bool there = false;
  device_full_.clear();
  try {
    there = offset >= 0 && map_pages(offset, bytes);
  } catch (...) {
    heap_.release(offset);
    throw;
  }
  if (!there) {
    if (offset >= 0) heap_.release(offset);
    throw DeviceError(cat("temporaries: ", format_bytes(bytes), " more are needed beside ", format_bytes(usage_.in_use), " in use; ", format_bytes(capacity_), " may be taken",
                          device_full_.empty() ? ". Raise budget.gpu or budget.headroom"
                                               : cat(", but the device has no more than ", format_bytes(usage_.mapped), " (", device_full_, "). End other programs on this GPU, or lower budget.gpu")));
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

// Counts the block on its pages once all of them are mapped; false where there are not enough.
bool TemporariesPool::map_pages(int64_t offset, int64_t bytes) {
  const int64_t first = offset / page_bytes_, last = (offset + bytes - 1) / page_bytes_;
  const auto count_block = [&](int32_t change) {
    for (int64_t page = first; page <= last; ++page) slots_[page].blocks += change;
  };
  const int64_t missing = std::count_if(slots_.begin() + first, slots_.begin() + last + 1, [](const Slot& slot) { return !slot.mapped; });
  count_block(1);  // none of its pages may be taken for another
  try {
    if (!tuned_) {
      create_pages(missing, expected_);
      take_free_pages(missing);
    }
    create_pages(missing, capacity_);
    take_free_pages(missing);
    if (static_cast<int64_t>(spare_.size()) < missing) {
      count_block(-1);
      return false;
    }
    for (int64_t page = first; page <= last; ++page) {
      Slot& slot = slots_[page];
      if (slot.mapped) continue;
      device_->map(page * page_bytes_, spare_.back());
      slot.mapped = true;
      slot.page = spare_.back();
      spare_.pop_back();
    }
  } catch (...) {
    count_block(-1);
    throw;
  }
  return true;
}

// Until `count` are spare, `capacity` is reached, or the device is full.
void TemporariesPool::create_pages(int64_t count, int64_t capacity) {
  while (static_cast<int64_t>(spare_.size()) < count && usage_.mapped < capacity && device_full_.empty()) {
    try {
      spare_.push_back(device_->create());
    } catch (const DeviceError& error) {
      device_full_ = error.what();
      return;
    }
    usage_.mapped += page_bytes_;
    usage_.peak_mapped = std::max(usage_.peak_mapped, usage_.mapped);
  }
}

// Until `count` are spare, or a block lies on each that is not: those between blocks are moved.
void TemporariesPool::take_free_pages(int64_t count) {
  if (static_cast<int64_t>(spare_.size()) >= count || std::ranges::none_of(slots_, is_free)) return;
  device_->wait();
  ++usage_.waits;
  // Layers repeat: what this one asked for tells where the next one's blocks lie best. Ever more seldom, since looking takes longer than waiting.
  if (!tuned_ && std::has_single_bit(static_cast<uint64_t>(usage_.waits))) heap_.set_large(log_.best_large());
  unmap_free_pages(count);
}

// Likewise; the device uses none of them.
void TemporariesPool::unmap_free_pages(int64_t count) {
  for (size_t page = 0; page < slots_.size() && static_cast<int64_t>(spare_.size()) < count; ++page) {
    Slot& slot = slots_[page];
    if (!is_free(slot)) continue;
    device_->unmap(static_cast<int64_t>(page) * page_bytes_);
    slot.mapped = false;
    spare_.push_back(slot.page);
  }
}

// All but `kept` pages at most; those are spare then.
void TemporariesPool::give_back_free_pages(int64_t kept) {
  unmap_free_pages(static_cast<int64_t>(slots_.size()));
  while (!spare_.empty() && usage_.mapped > kept * page_bytes_) {
    device_->destroy(spare_.back());
    spare_.pop_back();
    usage_.mapped -= page_bytes_;
  }
}

void TemporariesPool::end_step() {
  const std::lock_guard lock(mutex_);
  ++usage_.steps;
  if ((!tuned_ || usage_.waits >= next_look_) && !log_.empty()) {
    const int64_t large = log_.best_large(), extent = log_.extent_with(large);
    next_look_ = 2 * usage_.waits + 1;
    if (const int64_t now = log_.extent_with(heap_.large()); extent < now - now / 64) {
      next_look_ = usage_.waits + 1;
      heap_.set_large(large);
      device_->wait();
      give_back_free_pages(pool_bytes(extent) / page_bytes_ + 1);  // what lay elsewhere is not needed again
    }
    tuned_ = true;
  }
  log_.clear();
}

TemporariesPool::Usage TemporariesPool::usage() const {
  const std::lock_guard lock(mutex_);
  return usage_;
}

}  // namespace oom::memory
