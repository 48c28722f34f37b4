// Built for the interface after this one.
extern "C" __attribute__((visibility("default"))) const void* oom_plugin_v2() { return nullptr; }
