// Which version of the package was this library built from? `blink run` asks before it trusts a library.

extern "C" const char* blink_shim_version();

// The version in pyproject.toml, which CMake passes in. The text is never freed.
extern "C" const char* blink_shim_version() { return BLINK_VERSION; }
