// What this library was built from, as CMake passes it in: the loader refuses one of other headers or another version.
#include "blink/host.h"

uint32_t blink_abi_version(void) { return BLINK_ABI; }

const char* blink_host_version(void) { return BLINK_VERSION; }
