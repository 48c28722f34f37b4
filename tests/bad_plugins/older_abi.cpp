// Built for the interface before this one.
extern "C" __attribute__((visibility("default"))) const void* oom_plugin_v0() { return nullptr; }
