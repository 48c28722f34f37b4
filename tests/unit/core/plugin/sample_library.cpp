// The smallest library that looks like a plugin from outside. Never loaded.
extern "C" const void* oom_plugin_v1() { return nullptr; }
extern "C" int other_function(int value) { return value + 1; }
