// The functions of NCCL that Blink has nothing to add to: they go to the real library. And the version of the package
// that this library was built from, which `blink run` asks for before it trusts a library.

#include "exports.h"
#include "real_nccl.h"

#define BLINK_HANDLED(result, name, parameters, arguments, absent)
#define BLINK_FORWARDED(result, name, parameters, arguments, absent) \
  result name parameters { return blink::shim::real::name arguments; }
#include "nccl_functions.def"

extern "C" const char* blink_shim_version();

// The version in pyproject.toml, which CMake passes in. The text is never freed.
extern "C" const char* blink_shim_version() { return BLINK_VERSION; }
