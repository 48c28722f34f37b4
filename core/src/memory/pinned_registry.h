/// Makes host memory known to devices, so that copies to and from it are asynchronous and fast.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace oom::memory {

/// Ranges are registered once at start and unregistered at the end, never in between: both take driver locks and synchronise.
class PinnedRegistry {
 public:
  virtual ~PinnedRegistry() = default;
  /// Registers a page-aligned range whose pages were touched, for every device. No copy may cross from one range into another, nor 64 GiB within one. `done` (may be empty) is told how many bytes are
  /// registered so far, from any thread. Throws DeviceError and leaves nothing registered when it fails.
  virtual void register_range(std::byte* data, int64_t bytes, const std::function<void(int64_t done_bytes)>& done) = 0;
  /// Takes back a range given to register_range, whole.
  virtual void unregister_range(std::byte* data) noexcept = 0;
};

/// For the CPU device: nothing to tell anyone.
class NullPinnedRegistry : public PinnedRegistry {
 public:
  void register_range(std::byte* data, int64_t bytes, const std::function<void(int64_t)>& done) override;
  void unregister_range(std::byte* data) noexcept override;
};

/// cudaHostRegister, portable to all GPUs, in pieces and from several threads. Part of oom_core; throws DeviceError in an engine built
/// for the CPU alone.
std::unique_ptr<PinnedRegistry> make_cuda_pinned_registry();

struct ByteRange {
  std::byte* data = nullptr;
  int64_t bytes = 0;
};
/// Divides a range for `threads` threads: pieces of at least 1 GiB (but for the last) and at most 64 GiB (above, drivers of the 580 line
/// fail), with borders between them on huge pages.
std::vector<ByteRange> registration_pieces(std::byte* data, int64_t bytes, int threads);

}  // namespace oom::memory
