/// One plugin library in the process, from the load to the instances it makes.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "oom/plugin.h"
#include "plugin/plugin_inspect.h"

namespace oom::plugin {

/// A live plugin. Whoever holds it destroys it through its own library; instances go in the reverse order of creation.
struct PluginDeleter {
  void (*destroy)(Plugin*) noexcept = nullptr;
  void operator()(Plugin* plugin) const noexcept {
    if (plugin != nullptr) destroy(plugin);
  }
};
using PluginInstance = std::unique_ptr<Plugin, PluginDeleter>;

/// A loaded library whose descriptor has passed every check. Lives until the process ends: deleters, closures and exceptions of a plugin
/// live in its code. Descriptor and facts are read-only; use it from one thread.
class PluginLibrary {
 public:
  /// Returns the library of plugin `name` in `path`, loading it at the first call. In order, each with an error of its own (FileError):
  /// readable ELF file, our ABI number among its symbols, no other file of that name loaded before, the load itself, struct_size, stamp,
  /// name. A library that fails after the load stays mapped, unused.
  static PluginLibrary& open(std::string_view name, const std::filesystem::path& path);

  std::string_view name() const { return descriptor_.name; }
  std::string_view version() const { return descriptor_.version; }
  std::string_view summary() const { return descriptor_.summary; }
  Kind kind() const { return static_cast<Kind>(descriptor_.kind); }
  const std::filesystem::path& path() const { return path_; }
  const PluginFacts& facts() const { return facts_; }
  const OomPluginDescriptor& descriptor() const { return descriptor_; }

  /// Returns the schema of the plugin's table, null when it has none. Throws what the plugin reported, with its exit code; FileError when the
  /// table has another name than the plugin; Error when the schema contradicts itself.
  const SettingsSchema* settings_schema() const;
  /// Makes an instance. `services` must outlive it. Throws what the plugin reported, with its exit code; Error when it reported nothing.
  PluginInstance create(const HostServices& services) const;

  /// A plugin that is part of the program (the static flavour, in tests): `descriptor` has been checked.
  PluginLibrary(std::filesystem::path path, PluginFacts facts, const OomPluginDescriptor& descriptor);
  PluginLibrary(const PluginLibrary&) = delete;
  PluginLibrary& operator=(const PluginLibrary&) = delete;

 private:
  const std::filesystem::path path_;
  const PluginFacts facts_;
  const OomPluginDescriptor& descriptor_;
};

/// Checks a descriptor against what its file name promises and how this engine was built. Throws FileError that names every difference.
void check_descriptor(std::string_view name, const std::filesystem::path& path, const OomPluginDescriptor* descriptor);

/// Returns `plugin` as the interface of its kind; Error when its class does not implement it.
template <typename Interface>
Interface& as_interface(Plugin& plugin, std::string_view name) {
  auto* typed = dynamic_cast<Interface*>(&plugin);
  if (typed == nullptr) throw Error(cat("plugin '", name, "': its class does not implement the interface of its kind"));
  return *typed;
}

}  // namespace oom::plugin
