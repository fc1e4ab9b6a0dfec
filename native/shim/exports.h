// What does libblink.so export in NCCL's name? Every function of NCCL, declared here from the same table that forwards
// them, so that a wrapper with another signature does not compile.
#pragma once

#include "nccl_types.h"

extern "C" {
#define BLINK_HANDLED(result, name, parameters, arguments, absent) result name parameters;
#define BLINK_FORWARDED(result, name, parameters, arguments, absent) result name parameters;
#include "nccl_functions.def"
}
