/// The door of a plugin: one exported function that describes it. Interfaces are C++ classes behind that door.
///
/// A plugin is a shared library liboom_NAME.so made by the CMake function oom_add_plugin. Its plugin.cpp includes the interface it
/// implements and this header, and ends with
///
///     OOM_PLUGIN(oom::nearest_rank::NearestRank, oom::Kind::kExpertStrategy, "nearest_rank", "0.1.0", "Sends each token to the nearest copy")
///
/// The class has a constructor from `const oom::HostServices&` and, when it has a table of settings in the config, a static function
/// `const oom::SettingsSchema& settings_schema()`.
///
/// Order of calls: the engine finds the file, reads its dynamic symbols, loads it, calls the entry, compares the build stamp, name and kind;
/// then settings_schema (any number of times), create, the interface's functions, destroy. One thread makes these calls. Plugins are
/// destroyed in the reverse order of creation, before pools, communicators and the logger. A library is never unloaded.
///
/// Rules: no work in static constructors (they run before any check can); the destructor joins the plugin's threads and waits for its
/// streams; what may fail throws an oom::Error of the fitting kind (oom/error.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "oom/build_stamp.h"
#include "oom/error.h"
#include "oom/host_services.h"

namespace oom {
inline namespace abi_1 {

struct SettingsSchema;

/// What a plugin is for. Values are part of the binary interface: only appended.
enum class Kind : uint32_t { kModelAdapter = 0, kExpertStrategy = 1, kActivationStrategy = 2, kSelector = 3 };
inline constexpr uint32_t kKinds = 4;

/// Returns "expert strategy" for kExpertStrategy, and so on.
OOM_API std::string_view kind_name(Kind kind);

/// Base of every plugin interface. Interfaces define their destructors and key functions in the core library, which therefore owns their type
/// information: dynamic_cast and catching by type work across libraries.
class OOM_API Plugin {
 public:
  Plugin() = default;
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;
  virtual ~Plugin();
};

}  // namespace abi_1
}  // namespace oom

/// Where a plugin's function leaves the reason why it failed. The engine gives a cleared one and reads it after the call.
extern "C" struct OomPluginFailure {
  uint64_t struct_size;
  int32_t exit_code;   ///< an oom::ExitCode; 0: nothing was reported
  uint32_t capacity;   ///< bytes of `message`
  char message[8176];  ///< text, ending in 0
};

/// What a plugin says about itself: constant data, valid as long as the process. Fields are only appended.
extern "C" struct OomPluginDescriptor {
  uint64_t struct_size;        ///< sizeof(OomPluginDescriptor) where the plugin was built
  uint32_t abi;                ///< OOM_ABI where the plugin was built
  uint32_t kind;               ///< an oom::Kind
  const char* name;            ///< the NAME of liboom_NAME.so: lower-case letters, digits and underscores
  const char* version;         ///< the plugin's own
  const char* summary;         ///< one line, for lists
  const OomBuildStamp* stamp;  ///< how it was built
  /// Returns the schema of the plugin's table in the config, owned by the plugin; null without a failure: it has no table.
  const oom::SettingsSchema* (*settings_schema)(OomPluginFailure* failure) noexcept;
  /// Makes a plugin, to be given back to `destroy`; null after writing `failure`.
  oom::Plugin* (*create)(const oom::HostServices* services, OomPluginFailure* failure) noexcept;
  /// Destroys what `create` made; null is allowed.
  void (*destroy)(oom::Plugin* plugin) noexcept;
};

static_assert(std::is_trivially_copyable_v<OomPluginDescriptor> && std::is_standard_layout_v<OomPluginDescriptor>);
static_assert(offsetof(OomPluginDescriptor, struct_size) == 0);
static_assert(offsetof(OomPluginDescriptor, abi) == 8);
static_assert(offsetof(OomPluginDescriptor, kind) == 12);
static_assert(offsetof(OomPluginDescriptor, name) == 16);
static_assert(offsetof(OomPluginDescriptor, version) == 24);
static_assert(offsetof(OomPluginDescriptor, summary) == 32);
static_assert(offsetof(OomPluginDescriptor, stamp) == 40);
static_assert(offsetof(OomPluginDescriptor, settings_schema) == 48);
static_assert(offsetof(OomPluginDescriptor, create) == 56);
static_assert(offsetof(OomPluginDescriptor, destroy) == 64);
static_assert(offsetof(OomPluginFailure, message) == 16);

namespace oom {
inline namespace abi_1 {

/// Writes the exception being handled into `failure`: its text, and its exit code when it is an oom::Error. Call it from a catch block.
OOM_API void report_failure(OomPluginFailure& failure) noexcept;

/// The three functions of a descriptor for a plugin class; used by OOM_PLUGIN.
template <typename Type>
struct PluginEntry {
  static_assert(std::is_base_of_v<Plugin, Type>, "a plugin class implements one of the interfaces derived from oom::Plugin");
  static_assert(std::is_constructible_v<Type, const HostServices&>, "a plugin class has a constructor from const oom::HostServices&");

  static const SettingsSchema* settings_schema([[maybe_unused]] OomPluginFailure* failure) noexcept {
    if constexpr (requires { Type::settings_schema(); }) {
      try {
        return &Type::settings_schema();
      } catch (...) {
        report_failure(*failure);
      }
    }
    return nullptr;
  }
  static Plugin* create(const HostServices* services, OomPluginFailure* failure) noexcept {
    try {
      return new Type(*services);
    } catch (...) {
      report_failure(*failure);
      return nullptr;
    }
  }
  static void destroy(Plugin* plugin) noexcept { delete plugin; }
};

}  // namespace abi_1
}  // namespace oom

/// Name of the exported function: oom_plugin_v1. A plugin linked into a test program gives it another (oom_add_plugin does).
#if !defined(OOM_PLUGIN_ENTRY)
#define OOM_PLUGIN_ENTRY_(abi) oom_plugin_v##abi
#define OOM_PLUGIN_ENTRY_OF(abi) OOM_PLUGIN_ENTRY_(abi)
#define OOM_PLUGIN_ENTRY OOM_PLUGIN_ENTRY_OF(OOM_ABI)
#endif

/// oom_add_plugin passes the KIND it was given: both must say the same.
#if defined(OOM_DECLARED_KIND)
#define OOM_CHECK_KIND_(kind) static_assert((kind) == ::oom::Kind::OOM_DECLARED_KIND, "OOM_PLUGIN and oom_add_plugin name different kinds")
#else
#define OOM_CHECK_KIND_(kind) static_assert(static_cast<uint32_t>(kind) < ::oom::kKinds)
#endif

/// Writes the entry of a plugin library. Once per library, outside every namespace.
#define OOM_PLUGIN(Type, kind, name, version, summary)                                                                   \
  extern "C" OOM_API const OomPluginDescriptor* OOM_PLUGIN_ENTRY() noexcept {                                            \
    OOM_CHECK_KIND_(kind);                                                                                               \
    static constexpr OomBuildStamp kStamp = OOM_BUILD_STAMP;                                                             \
    static constexpr OomPluginDescriptor kDescriptor = {sizeof(OomPluginDescriptor),                                     \
                                                        OOM_ABI,                                                         \
                                                        static_cast<uint32_t>(kind),                                     \
                                                        name,                                                            \
                                                        version,                                                         \
                                                        summary,                                                         \
                                                        &kStamp,                                                         \
                                                        &::oom::PluginEntry<Type>::settings_schema,                      \
                                                        &::oom::PluginEntry<Type>::create,                               \
                                                        &::oom::PluginEntry<Type>::destroy};                             \
    return &kDescriptor;                                                                                                 \
  }
