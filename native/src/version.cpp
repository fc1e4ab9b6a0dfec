// Which version of the package was this library built from? The loader refuses a library of another version.

extern "C" const char* blink_host_version();

// Returns the version in pyproject.toml, which CMake passes in. The text is never freed.
extern "C" const char* blink_host_version() { return BLINK_VERSION; }
