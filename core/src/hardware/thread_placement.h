/// Where threads run: pinning and naming the calling thread.
#pragma once

#include <span>
#include <string_view>
#include <vector>

namespace oom::hardware {

/// Restricts the calling thread to the given processors (operating-system numbers); false where the system refuses or none is allowed.
bool pin_this_thread(const std::vector<int>& cpus);
/// Returns the processors the calling thread may run on.
std::vector<int> allowed_cpus();
/// Names the calling thread for debuggers and `top` (15 characters are kept).
void name_this_thread(std::string_view name);

}  // namespace oom::hardware
