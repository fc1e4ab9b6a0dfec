// The real NCCL. It is found when it is first needed, never before: a process that makes no NCCL call must not notice
// that this library is loaded.
//
// Looked for in this order: a libnccl.so.2 that is loaded already, in whatever scope (PyTorch loads it where the
// dynamic linker's "next" does not look); the file that BLINK_NCCL_LIB names; the next library after us that has the
// function. What turns out to be Blink is never taken.
#pragma once

#include "nccl_types.h"

namespace blink::shim {

// One function per function of NCCL, with its name and its types: calls the real one. While it runs, what NCCL calls of
// its own interface in the same thread goes straight through. Where the library lacks the function: ncclInvalidUsage
// and a line that names it; where there is no library: ncclSystemError and a line that says what was tried.
namespace real {
#define BLINK_FUNCTION(result, name, count, types, absent) result name types;
#include "nccl_functions.def"
}  // namespace real

// The version code of the real NCCL, 0 where there is none. Says nothing.
int real_version();

// Whether a call is none of our business: BLINK_DISABLE=1; made by NCCL itself, be it inside of a call of ours or in a
// thread of its own. `caller`: the return address of the exported function.
bool passes(const void* caller);

}  // namespace blink::shim
