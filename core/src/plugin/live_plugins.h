/// The plugins of a run, with the services each of them keeps a reference to.
#pragma once

#include <memory>
#include <vector>

#include "plugin/plugin_library.h"

namespace oom::plugin {

/// Owns instances and destroys them in the reverse order of creation. Destroy it before the pools, communicators and the logger that
/// the services lead to. One thread.
class LivePlugins {
 public:
  LivePlugins() = default;
  ~LivePlugins();
  LivePlugins(const LivePlugins&) = delete;
  LivePlugins& operator=(const LivePlugins&) = delete;

  /// Makes an instance of `library` with its own copy of `services`, and returns it as the interface of its kind. What the services point
  /// to (settings, run folder) is borrowed and must outlive this object. Throws as PluginLibrary::create.
  template <typename Interface>
  Interface& make(const PluginLibrary& library, const HostServices& services) {
    return as_interface<Interface>(make_any(library, services), library.name());
  }

 private:
  Plugin& make_any(const PluginLibrary& library, const HostServices& services);

  struct Live {
    std::unique_ptr<const HostServices> services;  // declared first: outlives the instance
    PluginInstance instance;
  };
  std::vector<Live> live_;
};

}  // namespace oom::plugin
