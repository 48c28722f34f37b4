#define BOOST_DLL_USE_STD_FS
#include "plugin/plugin_library.h"

#include <boost/dll/shared_library.hpp>
#include <chrono>
#include <mutex>
#include <vector>

#if OOM_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

#include "oom/log.h"
#include "oom/settings.h"
#include "plugin/build_stamp.h"

namespace oom::plugin {
namespace fs = std::filesystem;
namespace {

using EntryFunction = const OomPluginDescriptor*();
constexpr const char* kEntryName = "oom_plugin_v1";
static_assert(OOM_ABI == 1, "name the entry function of the new interface");

/// Longer than any load of code that does nothing in static constructors, shorter than a person's patience.
constexpr double kSlowLoadSeconds = 1.0;

/// Libraries of this process, never unloaded and never destroyed: the process may end while plugin code still runs.
struct LoadedLibraries {
  std::mutex mutex;
  std::vector<std::unique_ptr<PluginLibrary>> checked;
  std::vector<boost::dll::shared_library> mapped;
};
LoadedLibraries& loaded() {
  static auto* instance = new LoadedLibraries;
  return *instance;
}

/// Code of plugins registers its kernels when it is loaded; the runtime that they register with must be up before and go after.
void touch_cuda_runtime() {
#if OOM_WITH_CUDA
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess) cudaGetLastError();
#endif
}

size_t threads_of_process() {
  std::error_code error;
  size_t count = 0;
  for (fs::directory_iterator at("/proc/self/task", error), end; !error && at != end; at.increment(error)) ++count;
  return count;
}

/// Loads the library and calls its entry. Static constructors run inside, before any check; what they did is judged afterwards.
const OomPluginDescriptor* load_and_enter(std::string_view name, const fs::path& path, LoadedLibraries& libraries) {
  const size_t threads_before = threads_of_process();
  const auto begin = std::chrono::steady_clock::now();
  EntryFunction* entry = nullptr;
  try {
    boost::dll::shared_library library(path, boost::dll::load_mode::rtld_now | boost::dll::load_mode::rtld_local);
    libraries.mapped.push_back(library);
    entry = &library.get<EntryFunction>(kEntryName);
  } catch (const std::exception& error) {
    throw FileError(cat("plugin '", name, "' (", path.string(), ") cannot be loaded: ", error.what(),
                        ". Missing symbols or libraries mean that it was built against another engine: rebuild it."));
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const size_t threads_after = threads_of_process();
  if (threads_after > threads_before) {
    log_warn("plugin: '", name, "' (", path.string(), ") started ", threads_after - threads_before,
             " threads while it was being loaded; static constructors must do nothing, move the work into the plugin's constructor");
  }
  if (seconds > kSlowLoadSeconds) {
    log_warn("plugin: '", name, "' (", path.string(), ") took ", seconds,
             " s to load; static constructors must do nothing, move the work into the plugin's constructor");
  }
  return entry();
}

/// Raises what a plugin's function left behind, with the exit code it asked for.
[[noreturn]] void raise_failure(const PluginLibrary& library, std::string_view method, OomPluginFailure& failure) {
  failure.message[sizeof failure.message - 1] = '\0';
  const std::string message = cat("plugin '", library.name(), "', ", method, ": ",
                                  failure.message[0] != '\0' ? failure.message : "failed without saying why (a defect of the plugin)");
  switch (static_cast<ExitCode>(failure.exit_code)) {
    case ExitCode::kUsage: throw ConfigError(message);
    case ExitCode::kBudget: throw BudgetError(message);
    case ExitCode::kFile: throw FileError(message);
    case ExitCode::kDevice: throw DeviceError(message);
    case ExitCode::kDiverged: throw DivergedError(message);
    default: throw Error(message);
  }
}

std::unique_ptr<OomPluginFailure> cleared_failure() {
  auto failure = std::make_unique<OomPluginFailure>();
  failure->struct_size = sizeof(OomPluginFailure);
  failure->capacity = sizeof failure->message;
  return failure;
}

}  // namespace

void check_descriptor(std::string_view name, const fs::path& path, const OomPluginDescriptor* descriptor) {
  const std::string who = cat("plugin '", name, "' (", path.string(), ")");
  if (descriptor == nullptr) throw FileError(who + " describes itself with a null pointer: a defect of the plugin");
  if (descriptor->struct_size < sizeof(OomPluginDescriptor)) {
    throw FileError(cat(who, " has a descriptor of ", descriptor->struct_size, " bytes; this engine needs ", sizeof(OomPluginDescriptor),
                        ". Rebuild it against SDK ", OOM_SDK_VERSION, "."));
  }
  if (descriptor->abi != OOM_ABI) {
    throw FileError(cat(who, " says it was built for plugin interface ", descriptor->abi, " behind the entry of ", OOM_ABI, ". Rebuild it."));
  }
  if (descriptor->stamp == nullptr) throw FileError(who + " has no build stamp. Rebuild it with OOM_PLUGIN.");
  const std::vector<StampDifference> differences = stamp_differences(*descriptor->stamp, engine_stamp());
  if (!differences.empty()) {
    throw FileError(cat(who, " was built for ", describe_differences(differences), ". Rebuild it with the engine's tools and options."));
  }
  if (descriptor->name == nullptr || descriptor->version == nullptr || descriptor->summary == nullptr) {
    throw FileError(who + " does not say its name, version and summary. Rebuild it with OOM_PLUGIN.");
  }
  if (descriptor->name != name) {
    throw FileError(cat(who, " calls itself '", descriptor->name, "'; name and file name must agree: rename the file to liboom_",
                        descriptor->name, ".so, or correct OOM_PLUGIN."));
  }
  if (descriptor->kind >= kKinds) throw FileError(cat(who, " is of a kind that this engine does not know: ", descriptor->kind));
  if (descriptor->settings_schema == nullptr || descriptor->create == nullptr || descriptor->destroy == nullptr) {
    throw FileError(who + " lacks one of its functions settings_schema, create and destroy. Rebuild it with OOM_PLUGIN.");
  }
}

PluginLibrary::PluginLibrary(fs::path path, PluginFacts facts, const OomPluginDescriptor& descriptor)
    : path_(std::move(path)), facts_(std::move(facts)), descriptor_(descriptor) {}

PluginLibrary& PluginLibrary::open(std::string_view name, const fs::path& path) {
  LoadedLibraries& libraries = loaded();
  const std::lock_guard lock(libraries.mutex);
  PluginFacts facts = inspect_plugin_file(path);
  require_our_abi(path, facts);
  for (const std::unique_ptr<PluginLibrary>& library : libraries.checked) {
    if (library->name() != name) continue;
    std::error_code error;
    if (fs::equivalent(library->path(), path, error)) return *library;
    throw FileError(cat("plugin '", name, "' is loaded from ", library->path().string(), "; a second copy, ", path.string(),
                        ", is refused. Remove one, or its folder from the search path."));
  }
  if (libraries.mapped.empty()) touch_cuda_runtime();
  const OomPluginDescriptor* descriptor = load_and_enter(name, path, libraries);
  check_descriptor(name, path, descriptor);
  libraries.checked.push_back(std::make_unique<PluginLibrary>(path, std::move(facts), *descriptor));
  return *libraries.checked.back();
}

const SettingsSchema* PluginLibrary::settings_schema() const {
  const auto failure = cleared_failure();
  const SettingsSchema* schema = descriptor_.settings_schema(failure.get());
  if (failure->exit_code != 0) raise_failure(*this, "settings_schema", *failure);
  if (schema == nullptr) return nullptr;
  if (schema->table != name()) {
    throw FileError(cat("plugin '", name(), "' (", path_.string(), ") describes settings for the table [", schema->table,
                        "]; a plugin's table has the plugin's name. Correct its settings_schema()."));
  }
  check_schema(*schema);
  return schema;
}

PluginInstance PluginLibrary::create(const HostServices& services) const {
  OOM_CHECK(services.log != nullptr, "host services come with a log");
  const auto failure = cleared_failure();
  Plugin* plugin = descriptor_.create(&services, failure.get());
  if (plugin == nullptr) raise_failure(*this, "create", *failure);
  return PluginInstance(plugin, PluginDeleter{descriptor_.destroy});
}

}  // namespace oom::plugin
