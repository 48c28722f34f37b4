/// Version of the SDK, and the number of its binary interface.
#pragma once

/// The project's version; the build checks that both agree.
#define OOM_SDK_VERSION "0.1.0"

/// Number of the binary interface: the N of oom_plugin_vN and of the inline namespace abi_N. A published interface is not edited in
/// place: whoever adds, removes or reorders a virtual function, or changes a structure that plugins see, raises it.
#define OOM_ABI 1
