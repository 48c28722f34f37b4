/// Versions of the libraries that this program was built with, and of those that are loaded.
#pragma once

#include <string>
#include <vector>

namespace oom::runtime {

struct LibraryVersion {
  std::string name;
  std::string built;  ///< empty: not known, or not part of this build
  std::string found;  ///< empty: not loaded, or it does not tell
};
std::vector<LibraryVersion> library_versions();

}  // namespace oom::runtime
