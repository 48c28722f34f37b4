/// A stand-in for the part of the CUDA runtime that the executor calls: a stream is a thread with a queue, an event remembers its last
/// record. Like the real one, waiting on an event that was never recorded is no wait, and a wait holds the record it met when called.
#pragma once

#include <functional>

namespace oom::program {

/// Enqueues `work` on a fake cudaStream_t, as a kernel launch would.
void fake_launch(void* stream, std::function<void()> work);

/// As with devices without stream memory operations.
extern bool fake_device_cannot_wait_for_memory;

}  // namespace oom::program
