// The build's version and headers, as passed in by CMake: the loader refuses a library with other ones.
#include "blink/host.h"

uint32_t blink_abi_version(void) { return BLINK_ABI; }

const char* blink_host_version(void) { return BLINK_VERSION; }
