// The functions of NCCL that Blink has nothing to add to: they go to the real library.

#include "exports.h"
#include "real_nccl.h"

#define BLINK_HANDLED(result, name, parameters, arguments, absent)
#define BLINK_FORWARDED(result, name, parameters, arguments, absent) \
  result name parameters { return blink::shim::real::name arguments; }
#include "nccl_functions.def"
