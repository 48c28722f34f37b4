/// Judges a plugin file without loading it: nothing of the file is run. The file is untrusted; every read is bounds-checked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace oom::plugin {

/// What a shared library's headers and dynamic symbols say.
struct PluginFacts {
  std::vector<uint32_t> abis;       ///< N of each oom_plugin_vN that it exports, ascending; empty: no plugin of ours
  std::vector<std::string> needed;  ///< libraries it asks the loader for (DT_NEEDED)
  /// Functions that the loader runs before any check of ours can (DT_INIT_ARRAY), less the one that the compiler adds to every library.
  /// More than 0 is usual for code that includes <iostream>; what they do cannot be seen from outside.
  uint32_t static_constructors = 0;
};

/// Reads the facts of `path`. Throws FileError naming the file and what is wrong with it: missing, unreadable, no ELF file, of another
/// architecture, no shared library, truncated, damaged symbol tables.
PluginFacts inspect_plugin_file(const std::filesystem::path& path);

/// Throws FileError unless `facts` has the entry of this engine's ABI number; tells "no plugin", "older" and "newer" apart.
void require_our_abi(const std::filesystem::path& path, const PluginFacts& facts);

}  // namespace oom::plugin
