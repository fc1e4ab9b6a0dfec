// The real NCCL, searched for at first need: a process that makes no NCCL call must not be affected by this library.
//
// Search order: a loaded libnccl.so.2 of any scope (PyTorch loads it where RTLD_NEXT does not look), the file named by
// BLINK_NCCL_LIB, the next library after this one with the function. Blink itself never counts.
#pragma once

#include "nccl_types.h"

namespace blink::shim {

// One function per function of NCCL, with its name and types: calls the real one. Meanwhile NCCL's calls of its own
// interface in this thread go straight through. If the library lacks the function: ncclInvalidUsage and a line that
// names it. Without a library: ncclSystemError and a line that lists the attempts.
namespace real {
#define BLINK_FUNCTION(result, name, count, types, absent) result name types;
#include "nccl_functions.def"
}  // namespace real

// The version code of the real NCCL, 0 without one. Logs nothing.
int real_version();

// True if a call bypasses Blink: with BLINK_DISABLE=1, and if NCCL itself makes it, within a call of Blink or in its
// own thread. `caller`: the return address of the exported function.
bool passes(const void* caller);

}  // namespace blink::shim
